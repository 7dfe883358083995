// Waits of this process for file systems.
#include "engine/base/file_wait.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace trainctl {
namespace {

using Clock = std::chrono::steady_clock;

/// Fraction of the timeout after which a wait counts as hung. It is below 1 because others, which cannot name the file,
/// end the process once the whole timeout has passed.
constexpr double kHangFraction = 0.95;

struct Registry {
  std::mutex mutex;
  std::vector<FileWait::Slot*> slots;
};

/// Never destroyed: threads may outlive static objects.
Registry& registry() {
  static auto* all = new Registry;
  return *all;
}

struct OwnSlot : FileWait::Slot {
  OwnSlot() {
    const std::lock_guard lock(registry().mutex);
    registry().slots.push_back(this);
  }
  ~OwnSlot() {
    const std::lock_guard lock(registry().mutex);
    std::erase(registry().slots, this);
  }
};

FileWait::Slot& own_slot() {
  thread_local OwnSlot slot;
  return slot;
}

std::optional<EnvError> hanging(double timeout_seconds) {
  const std::lock_guard all(registry().mutex);
  for (FileWait::Slot* slot : registry().slots) {
    const std::lock_guard lock(slot->mutex);
    if (slot->path == nullptr) continue;
    const double seconds = std::chrono::duration<double>(Clock::now() - slot->since).count();
    if (seconds < kHangFraction * timeout_seconds) continue;
    return EnvError(fmt::format("{}: the file system has not responded for {:.0f} s, but launch.timeout is {:.0f} s",
                                *slot->path, seconds, timeout_seconds));
  }
  return {};
}

}  // namespace

FileWait::FileWait(const std::string& path) : slot_(own_slot()) {
  const std::lock_guard lock(slot_.mutex);
  slot_.path = &path;
  slot_.since = Clock::now();
}

FileWait::~FileWait() {
  const std::lock_guard lock(slot_.mutex);
  slot_.path = nullptr;
}

FileWatch::FileWatch(double timeout_seconds, std::function<void(const EnvError&)> on_hang)
    : thread_([this, timeout_seconds, on_hang = std::move(on_hang)] {
        if (timeout_seconds <= 0) return;
        const auto look = std::chrono::duration<double>(std::clamp(timeout_seconds / 50, 0.01, 0.5));
        std::unique_lock lock(mutex_);
        while (!ended_.wait_for(lock, look, [this] { return has_ended_; })) {
          const std::optional<EnvError> error = hanging(timeout_seconds);
          if (!error) continue;
          lock.unlock();
          return on_hang(*error);
        }
      }) {}

FileWatch::~FileWatch() {
  {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

}  // namespace trainctl
