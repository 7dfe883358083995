// One TLS connection between two ranks, as Gloo's transport uses it: see tls_transport.h.
#include "engine/runtime/comm/tls_link.h"

#include <fmt/format.h>
#include <gloo/common/error.h>

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"

namespace trainctl::comm {
namespace {

constexpr size_t kRecord = size_t{16} << 10;  // bytes; the most that TLS encrypts at once

}  // namespace

bool TlsBuffer::wait(std::deque<int>& done, int* rank, std::chrono::milliseconds timeout, const char* what) {
  if (timeout == gloo::transport::kUnsetTimeout) timeout = default_timeout();
  const auto is_over = [&] { return aborted_ || !done.empty() || !failure_.empty(); };
  std::unique_lock lock(mutex_);
  if (timeout == gloo::kNoTimeout) {
    changed_.wait(lock, is_over);
  } else if (!changed_.wait_for(lock, timeout, is_over)) {
    throw gloo::IoException(fmt::format("Timed out waiting {}ms for {} operation to complete", timeout.count(), what));
  }
  if (!done.empty()) {
    if (rank != nullptr) *rank = done.front();
    done.pop_front();
    return true;
  }
  if (!failure_.empty()) throw gloo::IoException(failure_);
  aborted_ = false;
  return false;
}

void TlsBuffer::add(std::deque<int>& done, int rank) {
  const std::lock_guard lock(mutex_);
  done.push_back(rank);
  changed_.notify_all();
}

void TlsBuffer::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  failure_ = reason;
  changed_.notify_all();
}

void TlsBuffer::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

bool TlsLink::adopt(std::unique_ptr<TlsStream> stream) {
  const std::lock_guard lock(mutex_);
  if (stream_ || !failure_.empty()) return false;
  stream_ = std::move(stream);
  connected_.notify_all();
  guard([&] {
    watcher_.watch(stream_->socket(), key_, false);
    // Bytes that came with the last ones of the handshake are in the stream: the socket would not report them.
    read_all();
    flush();
  });
  return true;
}

bool TlsLink::wait_connected(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return connected_.wait_for(lock, timeout, [&] { return stream_ != nullptr || !failure_.empty(); });
}

void TlsLink::require_open() const {
  if (!failure_.empty()) throw gloo::IoException(failure_);
}

/// Runs `action` under the lock. An error of the connection closes the link and wakes everything that waits for it.
template <typename Action>
void TlsLink::guard(const Action& action) {
  try {
    action();
  } catch (const EnvError& error) {
    const std::string reason = fmt::format("Connection to rank {} of the group failed: {}", peer_, error.what());
    failure_ = reason;
    stream_.reset();
    const auto fail = [&](Waiting& waiting) {
      for (auto& [slot, parts] : waiting)
        for (const Part& part : parts)
          if (part.buffer != nullptr) part.buffer->fail(reason);
      waiting.clear();
    };
    fail(sends_);
    fail(recvs_);
    asks_.clear();
    for (const auto& [header, part] : out_)
      if (part.buffer != nullptr) part.buffer->fail(reason);
    out_.clear();
    for (TlsBuffer* buffer : in_record_) buffer->fail(reason);
    in_record_.clear();
    if (is_receiving_) in_.buffer->fail(reason);
    is_receiving_ = false;
    connected_.notify_all();
  }
}

void TlsLink::end(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) guard([&] { throw EnvError(reason); });
}

bool TlsLink::take(Waiting& waiting, uint64_t slot, uint64_t bytes, Part& part) {
  const auto found = waiting.find(slot);
  if (found == waiting.end()) return false;
  part = found->second.front();
  if (part.bytes != bytes)
    throw EnvError(
        fmt::format("the sizes of a message differ: {} bytes on one side, {} on the other", part.bytes, bytes));
  found->second.pop_front();
  if (found->second.empty()) waiting.erase(found);
  return true;
}

void TlsLink::put(Kind kind, uint64_t slot, const Part& part) { out_.push_back({{kind, slot, part.bytes}, part}); }

void TlsLink::send(TlsBuffer& buffer, uint64_t slot, char* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  require_open();
  const Part part{.buffer = &buffer, .data = data, .bytes = bytes};
  guard([&] {
    if (Part asked; !take(asks_, slot, bytes, asked)) return sends_[slot].push_back(part);
    put(kSends, slot, part);
    flush();
  });
  require_open();
}

void TlsLink::recv(TlsBuffer& buffer, uint64_t slot, char* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  require_open();
  recvs_[slot].push_back({.buffer = &buffer, .data = data, .bytes = bytes});
  guard([&] {
    put(kAsks, slot, {.bytes = bytes});
    flush();
  });
  require_open();
}

void TlsLink::fill_record() {
  record_.clear();
  record_put_ = 0;
  while (!out_.empty() && record_.size() + sizeof(Header) < kRecord) {
    auto& [header, part] = out_.front();
    if (part.done == 0) record_.append(reinterpret_cast<const char*>(&header), sizeof header);
    if (header.kind == kSends) {
      const size_t now = std::min(part.bytes - part.done, kRecord - record_.size());
      record_.append(part.data + part.done, now);
      part.done += now;
      if (part.done < part.bytes) return;
      in_record_.push_back(part.buffer);
    }
    out_.pop_front();
  }
}

/// Writes as much as the socket takes now. The rest follows when the socket has room again.
void TlsLink::flush() {
  if (!stream_) return;
  for (;;) {
    if (record_put_ == record_.size()) {
      for (TlsBuffer* buffer : in_record_) buffer->has_sent(peer_);
      in_record_.clear();
      fill_record();
      if (record_.empty()) break;
    }
    const size_t put = stream_->try_write(std::string_view(record_).substr(record_put_));
    record_put_ += put;
    if (put == 0) break;
  }
  const bool writes = record_put_ < record_.size();
  if (writes == watches_writes_) return;
  watches_writes_ = writes;
  watcher_.watch(stream_->socket(), key_, writes);
}

void TlsLink::finish_part() {
  is_receiving_ = false;
  in_.buffer->has_got(peer_);
}

void TlsLink::handle_header() {
  Header header;
  std::memcpy(&header, header_.data(), sizeof header);
  header_got_ = 0;
  if (header.kind == kAsks) {
    Part part;
    if (take(sends_, header.slot, header.bytes, part))
      put(kSends, header.slot, part);
    else
      asks_[header.slot].push_back({.bytes = header.bytes});
    return;
  }
  if (header.kind != kSends || !take(recvs_, header.slot, header.bytes, in_))
    throw EnvError("the peer sent an unexpected message");
  is_receiving_ = true;
  if (in_.bytes == 0) finish_part();
}

void TlsLink::read_all() {
  while (stream_) {
    const std::span<char> into =
        is_receiving_ ? std::span(in_.data + in_.done, in_.bytes - in_.done) : std::span(header_).subspan(header_got_);
    const size_t got = stream_->try_read(into);
    if (got == 0) return;
    if (is_receiving_) {
      in_.done += got;
      if (in_.done == in_.bytes) finish_part();
    } else {
      header_got_ += got;
      if (header_got_ == header_.size()) handle_header();
    }
  }
}

void TlsLink::serve() {
  const std::lock_guard lock(mutex_);
  guard([&] {
    read_all();
    flush();
  });
}

void TlsLink::forget(const TlsBuffer& buffer) {
  const std::lock_guard lock(mutex_);
  bool is_under_way = is_receiving_ && in_.buffer == &buffer;
  const auto drop = [&](Waiting& waiting) {
    bool found = false;
    for (auto slot = waiting.begin(); slot != waiting.end();) {
      found = std::erase_if(slot->second, [&](const Part& part) { return part.buffer == &buffer; }) > 0 || found;
      slot = slot->second.empty() ? waiting.erase(slot) : std::next(slot);
    }
    return found;
  };
  drop(sends_);
  is_under_way = drop(recvs_) || is_under_way;  // the peer may be sending it already
  const bool is_going =
      std::any_of(out_.begin(), out_.end(), [&](const auto& one) { return one.second.buffer == &buffer; });
  const bool is_gone = std::erase(in_record_, &buffer) > 0;  // its bytes were copied
  if (is_gone && !is_going && !is_under_way) return;
  if (is_under_way || is_going) guard([] { throw EnvError("a message was cancelled"); });
}

}  // namespace trainctl::comm
