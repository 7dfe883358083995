// See the header. OpenSSL uses the processor's SHA instructions.
#include "engine/train/checkpoint/digest.h"

#include <openssl/evp.h>

#include <array>

#include "engine/base/error.h"

namespace trainctl {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  check(state_->context != nullptr && EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1,
        "OpenSSL has SHA-256");
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::add(std::span<const uint8_t> bytes) {
  check(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1, "a digest can be continued");
}

std::string Sha256::digits() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  check(EVP_DigestFinal_ex(state_->context, digest.data(), &size) == 1 && 2 * size == kDigestDigits,
        "SHA-256 has 32 bytes");
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

std::string sha256(std::string_view text) {
  Sha256 digest;
  digest.add({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  return digest.digits();
}

}  // namespace trainctl
