// Unauthenticated peers: connections to a listener that have not yet proved that they may use it. Anyone can open them,
// so their number is limited: a new one closes the oldest. A client that authenticates immediately is always served.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "engine/base/open_files.h"

namespace trainctl {

/// A Connection has close(). Connections that have ended need no remove().
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

  /// Called when the peer has authenticated.
  void remove(const Connection* connection) {
    std::erase_if(waiting_, [&](const auto& one) { return one.lock().get() == connection; });
  }

 private:
  std::deque<std::weak_ptr<Connection>> waiting_;
};

}  // namespace trainctl
