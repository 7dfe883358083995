// One side's messages over connections that may break: each message arrives once and in order.
#include "launcher/hosts/session.h"

#include <utility>

#include "engine/base/error.h"

namespace trainctl::hosts {

void Session::send(Message message) {
  check(message.text.size() <= kMaxTextBytes && message.name.size() <= kMaxNameBytes,
        "messages between hosts are small");
  std::string frame = encode(Numbered{++sent_, std::move(message)});
  bytes_ += frame.size();
  kept_.push_back({sent_, std::move(frame)});
}

bool Session::confirmed(uint64_t received) {
  if (received > sent_ || received < confirmed_) return false;
  confirmed_ = received;
  while (!kept_.empty() && kept_.front().number <= received) {
    bytes_ -= kept_.front().frame.size();
    kept_.pop_front();
    if (unwritten_ > 0) --unwritten_;
  }
  return true;
}

bool Session::joined(uint64_t received) {
  if (!confirmed(received)) return false;
  unwritten_ = 0;
  joined_ = true;
  return true;
}

void Session::lost() { joined_ = false; }

std::optional<Message> Session::receive(Numbered numbered, bool& broken) {
  broken = numbered.number > received_ + 1;
  if (numbered.number != received_ + 1) return std::nullopt;
  ++received_;
  return std::move(numbered.message);
}

std::string Session::take_output(size_t most) {
  std::string out;
  while (has_output() && out.size() < most) out += kept_[unwritten_++].frame;
  return out;
}

}  // namespace trainctl::hosts
