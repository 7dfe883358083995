// Computes the XXH128 of bytes that are added piece by piece. It protects against damage, not against forgery.
#include "engine/train/files/digest.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <new>

namespace trainctl {

struct Digest::State {
  XXH3_state_t* xxh = XXH3_createState();  // wants more alignment than new gives
  State() {
    if (xxh == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(xxh);
  }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Digest::Digest() : state_(std::make_unique<State>()) {}
Digest::~Digest() = default;
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;

void Digest::add(std::span<const uint8_t> bytes) { XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size()); }

std::string Digest::digits() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string digest_of(std::string_view text) {
  Digest digest;
  digest.add({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  return digest.digits();
}

}  // namespace trainctl
