// SHA-256 of what is copied to hosts: a name for its contents.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace trainctl::hosts {

class Digest {
 public:
  Digest();
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void add(std::string_view bytes);
  /// The text and its end, so that two texts are not one longer text.
  void add_text(const std::string& text) { add({text.c_str(), text.size() + 1}); }
  /// A file's contents. Throws EnvError.
  void add_file(const std::string& path);
  /// 64 hexadecimal digits. The last call.
  std::string hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace trainctl::hosts
