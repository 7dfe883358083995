// SHA-256 of files: it names the contents of those that are copied to hosts, and of plugins.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace trainctl {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::string_view bytes);
  /// Adds the text and its end, so that two texts differ from their concatenation.
  void add_text(const std::string& text) { add({text.c_str(), text.size() + 1}); }
  /// Adds the contents of a file. Throws EnvError.
  void add_file(const std::string& path);
  /// Returns 64 hexadecimal digits. Call it last.
  std::string hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace trainctl
