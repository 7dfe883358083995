// The protocol between a launcher and an agent, in both directions.
#include "launcher/hosts/frame.h"

#include <utility>

namespace trainctl::hosts {
namespace {

template <class Integer>
void put(std::string& out, Integer value) {
  const auto bits = static_cast<std::make_unsigned_t<Integer>>(value);
  for (size_t byte = 0; byte < sizeof value; ++byte) out += static_cast<char>(bits >> (8 * byte) & 0xff);
}

/// Reads an integer and removes it from the front.
template <class Integer>
bool take(std::string_view& body, Integer& value) {
  if (body.size() < sizeof(Integer)) return false;
  using Bits = std::make_unsigned_t<Integer>;
  Bits bits = 0;
  for (size_t byte = 0; byte < sizeof(Integer); ++byte)
    bits = static_cast<Bits>(
        bits | static_cast<Bits>(static_cast<Bits>(static_cast<unsigned char>(body[byte])) << (8 * byte)));
  value = static_cast<Integer>(bits);
  body.remove_prefix(sizeof(Integer));
  return true;
}

bool is_kind(uint8_t kind) {
  return kind != 0 &&
         std::string_view("PSKHZLQXWERUBNDFGOITCYVM").find(static_cast<char>(kind)) != std::string_view::npos;
}

void encode_body(std::string& out, const Join& join) {
  out += 'J';
  put(out, join.version);
  put(out, join.connection);
  put(out, join.received);
  out += join.token;
}

void encode_body(std::string& out, const Welcome& welcome) {
  out += 'W';
  put(out, welcome.version);
  put(out, welcome.received);
}

void encode_body(std::string& out, const Numbered& numbered) {
  const Message& message = numbered.message;
  out += 'M';
  put(out, numbered.number);
  put(out, static_cast<uint8_t>(message.kind));
  put(out, message.attempt);
  put(out, message.rank);
  put(out, message.number);
  put(out, static_cast<uint16_t>(message.name.size()));
  out += message.name;
  out += message.text;
}

void encode_body(std::string& out, const Alive& alive) {
  out += 'A';
  put(out, alive.received);
}

std::optional<Frame> parse_join(std::string_view body) {
  Join join;
  if (!take(body, join.version) || !take(body, join.connection) || !take(body, join.received)) return std::nullopt;
  if (body.size() > kMaxTokenBytes) return std::nullopt;
  join.token = body;
  return join;
}

std::optional<Frame> parse_welcome(std::string_view body) {
  Welcome welcome;
  if (!take(body, welcome.version) || !take(body, welcome.received) || !body.empty()) return std::nullopt;
  return welcome;
}

std::optional<Frame> parse_message(std::string_view body) {
  Numbered numbered;
  Message& message = numbered.message;
  uint8_t kind = 0;
  uint16_t name_size = 0;
  if (!take(body, numbered.number) || !take(body, kind) || !take(body, message.attempt) || !take(body, message.rank) ||
      !take(body, message.number) || !take(body, name_size))
    return std::nullopt;
  if (numbered.number == 0 || !is_kind(kind) || name_size > kMaxNameBytes || name_size > body.size() ||
      body.size() - name_size > kMaxTextBytes)
    return std::nullopt;
  message.kind = static_cast<Message::Kind>(kind);
  message.name = body.substr(0, name_size);
  message.text = body.substr(name_size);
  return numbered;
}

std::optional<Frame> parse_alive(std::string_view body) {
  Alive alive;
  if (!take(body, alive.received) || !body.empty()) return std::nullopt;
  return alive;
}

}  // namespace

std::string encode(const Frame& frame) {
  std::string body;
  std::visit([&](const auto& it) { encode_body(body, it); }, frame);
  std::string out;
  put(out, static_cast<uint32_t>(body.size()));
  return out + body;
}

std::optional<Frame> parse_frame(std::string_view body) {
  if (body.empty()) return std::nullopt;
  const char kind = body.front();
  body.remove_prefix(1);
  if (kind == 'J') return parse_join(body);
  if (kind == 'W') return parse_welcome(body);
  if (kind == 'M') return parse_message(body);
  if (kind == 'A') return parse_alive(body);
  return std::nullopt;
}

std::optional<Frame> FrameReader::next() {
  if (broken_) return std::nullopt;
  std::string_view rest = std::string_view(buffer_).substr(taken_);
  uint32_t size = 0;
  const bool has_size = take(rest, size);
  if (has_size && (size == 0 || size > kMaxFrameBytes)) broken_ = true;
  if (broken_ || !has_size || rest.size() < size) {
    buffer_.erase(0, std::exchange(taken_, 0));
    return std::nullopt;
  }
  auto frame = parse_frame(rest.substr(0, size));
  taken_ += sizeof size + size;
  broken_ = !frame;
  return frame;
}

}  // namespace trainctl::hosts
