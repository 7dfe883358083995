// SHA-256 of what is given to it piece by piece.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace trainctl {

inline constexpr size_t kDigestDigits = 64;

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void add(std::span<const uint8_t> bytes);
  /// 64 hexadecimal digits; nothing can be added after it.
  std::string digits();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256(std::string_view text);

}  // namespace trainctl
