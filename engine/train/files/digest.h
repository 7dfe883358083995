// Computes the XXH128 of bytes that are added piece by piece. It protects against damage, not against forgery. The
// digits are the same as those of `xxhsum -H128`.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace trainctl {

inline constexpr size_t kDigestDigits = 32;

class Digest {
 public:
  Digest();
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;

  void add(std::span<const uint8_t> bytes);
  /// 32 hexadecimal digits of all bytes so far.
  std::string digits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string digest_of(std::string_view text);

}  // namespace trainctl
