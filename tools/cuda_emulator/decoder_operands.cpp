// Operands as places in the register file.
#include <cstring>

#include "tools/cuda_emulator/decoder.h"

namespace trainctl::emulator {

int32_t Decoder::new_register(uint8_t bytes) {
  const int32_t at = next_register_;
  next_register_ += bytes == 0 ? 4 : bytes * kLanes;
  return at;
}

std::optional<Register> Decoder::find_register(std::string_view name) {
  const std::string whole(name);
  size_t digits = name.size();
  while (digits > 0 && std::isdigit(static_cast<unsigned char>(name[digits - 1]))) --digits;
  const std::string prefix(name.substr(0, digits));
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->registers.find(whole);
        found != scope->registers.end() && scope->counts.count(whole) == 0)
      return found->second;
    if (digits == name.size()) continue;
    const auto found = scope->registers.find(prefix);
    const auto count = scope->counts.find(prefix);
    if (found == scope->registers.end() || count == scope->counts.end()) continue;
    const int n = std::stoi(std::string(name.substr(digits)));
    if (n >= count->second) continue;
    const uint8_t bytes = found->second.bytes;
    return Register{found->second.at + n * (bytes == 0 ? 4 : bytes * kLanes), bytes};
  }
  return std::nullopt;
}

const Symbol* Decoder::symbol(std::string_view name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->symbols.find(name); found != scope->symbols.end()) return &found->second;
  }
  const auto found = globals_.find(name);
  return found == globals_.end() ? nullptr : &found->second;
}

Register Decoder::reg(const Argument& a) {
  if (a.kind != Argument::Kind::name) fail("not a register");
  const std::optional<Register> found = find_register(a.name);
  if (!found) fail("an unknown register " + std::string(a.name));
  return *found;
}

int32_t Decoder::target(const Argument& a, uint8_t bytes) {
  if (a.kind == Argument::Kind::sink) return new_register(bytes);
  const Register r = reg(a);
  if (r.bytes != bytes) fail("a result of another size");
  return r.at;
}

int32_t Decoder::constant(const void* bytes, size_t n) {
  const std::string key(static_cast<const char*>(bytes), n);
  const auto [found, is_new] = constant_at_.try_emplace(key, 0);
  if (is_new) {
    const size_t at = align_up(kernel_.constants.size(), 64);
    kernel_.constants.resize(at + n);
    std::memcpy(kernel_.constants.data() + at, bytes, n);
    found->second = static_cast<int32_t>(at) + kConstants;
  }
  return found->second;
}

int32_t Decoder::predicate(const Argument& a) {
  if (a.kind == Argument::Kind::integer) return constant(a.value != 0 ? kAllLanes : 0u);
  const Register r = reg(a);
  if (r.bytes != 0) fail("not a predicate");
  return r.at;
}

int32_t Decoder::source(const Argument& a, uint8_t bytes) {
  uint64_t value = static_cast<uint64_t>(a.value);
  if (a.kind == Argument::Kind::real && a.is_f64 && bytes == 4) {  // f64 literals may be used as f32
    double wide;
    std::memcpy(&wide, &value, sizeof wide);
    const auto narrow = static_cast<float>(wide);
    value = 0;
    std::memcpy(&value, &narrow, sizeof narrow);
  }
  if (a.kind == Argument::Kind::name) {
    if (const std::optional<Register> found = find_register(a.name)) {
      if (found->bytes != bytes) fail("an operand of another size");
      return found->at;
    }
    if (a.name[0] == '%') {
      auto [at, is_new] = special_at_.try_emplace(std::string(a.name), 0);
      if (is_new) {
        next_register_ = static_cast<int32_t>(align_up(static_cast<size_t>(next_register_), 64));
        at->second = new_register(4);
        kernel_.specials.push_back({std::string(a.name), at->second});
      }
      if (bytes != 4) fail("a special register of another size");
      return at->second;
    }
    if (a.name == "WARP_SZ") {
      value = kLanes;
    } else {
      const Symbol* s = symbol(a.name);
      if (s == nullptr) fail("an unknown name " + std::string(a.name));
      value = s->address + static_cast<uint64_t>(a.value);
    }
  } else if (a.kind != Argument::Kind::integer && a.kind != Argument::Kind::real) {
    fail("not an operand of this kind");
  }
  switch (bytes) {
    case 1:
      return constant(static_cast<uint8_t>(value));
    case 2:
      return constant(static_cast<uint16_t>(value));
    case 4:
      return constant(static_cast<uint32_t>(value));
    default:
      return constant(value);
  }
}

void Decoder::address(const Argument& a, Instruction& in) {
  if (a.kind != Argument::Kind::address || a.parts.empty()) fail("not an address");
  const Argument& base = a.parts[0];
  if (base.kind == Argument::Kind::name) {
    if (const std::optional<Register> found = find_register(base.name)) {
      // Registers of 4 bytes are widened when the address is read: addresses do not use is_signed.
      in.from[0] = found->at;
      in.width = found->bytes;
      in.offset = base.value;
      return;
    }
    const Symbol* s = symbol(base.name);
    if (s == nullptr) fail("an unknown name " + std::string(base.name));
    if (s->space == Space::local) in.space = Space::local;  // call parameters too
    in.from[0] = constant(uint64_t{0});
    in.width = 8;
    in.offset = static_cast<int64_t>(s->address) + base.value;
    return;
  }
  in.from[0] = constant(uint64_t{0});
  in.width = 8;
  in.offset = base.value;
}

}  // namespace trainctl::emulator
