// The subset of Jinja that chat templates use, with the results of jinja2 as transformers configures it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/value.h"

namespace trainctl::jinja {

struct Rendered {
  std::string text;
  /// Bytes of the text that {% generation %} surrounds: what an assistant writes.
  struct Range {
    size_t begin = 0, end = 0;
  };
  std::vector<Range> generated;
};

class Template {
 public:
  /// Throws EnvError, with the line, as jinja::parse.
  explicit Template(std::string_view source);
  /// Throws EnvError, with the line, if an operation cannot be done, or the template calls raise_exception. Threads may
  /// share it.
  Rendered render(const Dict& variables) const;
  bool has_generation() const { return has_generation_; }

 private:
  std::shared_ptr<const Body> body_;
  bool has_generation_ = false;
};

}  // namespace trainctl::jinja
