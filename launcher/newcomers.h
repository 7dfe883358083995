// Connections to a listener that have not proved yet that they may use it. Anyone can open them, so they are few: beyond
// the limit a new one closes the oldest, and a client that proves itself at once is served however many others are idle.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "engine/base/open_files.h"

namespace trainctl {

/// A Connection has close(). One that has ended needs no remove().
template <class Connection>
class Newcomers {
 public:
  static constexpr size_t kMost = 256;

  void add(const std::shared_ptr<Connection>& connection) {
    std::erase_if(waiting_, [](const auto& one) { return one.expired(); });
    const size_t most = most_unauthenticated(kMost);
    while (waiting_.size() >= most) {
      if (const auto oldest = waiting_.front().lock()) oldest->close();
      waiting_.pop_front();
    }
    waiting_.push_back(connection);
  }

  /// It has proved itself.
  void remove(const Connection* connection) {
    std::erase_if(waiting_, [&](const auto& one) { return one.lock().get() == connection; });
  }

 private:
  std::deque<std::weak_ptr<Connection>> waiting_;
};

}  // namespace trainctl
