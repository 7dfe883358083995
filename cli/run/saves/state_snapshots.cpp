// Snapshots of a rank's state, copied before each step into memory that outlives the rank.
#include "cli/run/saves/state_snapshots.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <new>

namespace trainctl {
namespace {

constexpr int64_t kPage = 4096;

struct Slot {
  std::atomic<uint64_t> copied{0}, stored{0};  ///< the step plus 1; 0: none
  SaveBoard::Position position;
};

struct Head {
  std::atomic<int64_t> image_bytes{0};
  std::array<Slot, 2> slots;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "other processes read it");

int64_t pages(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
int64_t slot_at(size_t slot, int64_t image_bytes) {
  return pages(sizeof(Head)) + static_cast<int64_t>(slot) * pages(image_bytes);
}
size_t slot_of(int64_t step) { return static_cast<size_t>(step) % 2; }
uint64_t word(int64_t step) { return static_cast<uint64_t>(step) + 1; }

Head& head_of(const ImageMemory& memory) { return *std::launder(reinterpret_cast<Head*>(memory.bytes().data())); }

/// A copy of the current contents.
struct HeadCopy {
  int64_t image_bytes = 0;
  struct {
    uint64_t copied = 0, stored = 0;
    SaveBoard::Position position;
  } slots[2];
};

std::optional<HeadCopy> read_head(int fd) {
  alignas(Head) std::array<char, sizeof(Head)> bytes{};
  if (pread(fd, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return std::nullopt;
  const auto& head = *std::launder(reinterpret_cast<const Head*>(bytes.data()));
  HeadCopy copy;
  copy.image_bytes = head.image_bytes.load();
  for (size_t i = 0; i < 2; ++i) copy.slots[i] = {head.slots[i].copied, head.slots[i].stored, head.slots[i].position};
  return copy;
}

bool is_whole(const HeadCopy& head, int64_t step) {
  const auto& slot = head.slots[slot_of(step)];
  return slot.copied == word(step) && slot.stored == word(step);
}

}  // namespace

SnapshotWriter::SnapshotWriter(const Program& program, int fd, const TrainPosition& from)
    : image_(program, StateShare::local),
      memory_(fd, slot_at(2, image_.bytes()), true),
      position_(from),
      validation_(from.validation) {
  Head* head = new (memory_.bytes().data()) Head;
  for (size_t slot = 0; slot < 2; ++slot)
    std::memcpy(memory_.bytes().data() + slot_at(slot, image_.bytes()), image_.head().data(), image_.head().size());
  head->image_bytes = image_.bytes();
}

void SnapshotWriter::before_step(int64_t step, Executor& executor) {
  Slot& slot = head_of(memory_).slots[slot_of(step)];
  slot.copied.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // a reader of an incomplete copy detects it
  std::byte* image = memory_.bytes().data() + slot_at(slot_of(step), image_.bytes());
  for (const StateCopy& copy : image_.copies()) executor.read(copy.offset, image + copy.to, copy.bytes);
  slot.copied.store(word(step), std::memory_order_release);
  report_position(step);
}

void SnapshotWriter::on_position(const TrainPosition& position) {
  position_ = position;
  report_position(position.step);
}

/// With train.sink_steps, the losses before a step become known only after it has begun.
void SnapshotWriter::report_position(int64_t step) {
  Slot& slot = head_of(memory_).slots[slot_of(step)];
  if (position_.step != step || slot.copied.load(std::memory_order_relaxed) != word(step)) return;
  slot.position = board_position(position_, validation_);
  slot.stored.store(word(step), std::memory_order_release);
}

std::vector<int64_t> StateSnapshots::steps() const {
  const auto head = read_head(fd_);
  std::vector<int64_t> steps;
  for (size_t slot = 0; head && slot < 2; ++slot) {
    const int64_t step = static_cast<int64_t>(head->slots[slot].copied) - 1;
    if (step >= 0 && is_whole(*head, step)) steps.push_back(step);
  }
  return steps;
}

int64_t StateSnapshots::bytes() const {
  const auto head = read_head(fd_);
  return head ? head->image_bytes : 0;
}

std::optional<SaveBoard::Position> StateSnapshots::position(int64_t step) const {
  const auto head = read_head(fd_);
  if (!head || !is_whole(*head, step)) return std::nullopt;
  return head->slots[slot_of(step)].position;
}

std::string StateSnapshots::read(int64_t step, int64_t offset, int64_t bytes) const {
  const auto head = read_head(fd_);
  if (!head || !is_whole(*head, step) || offset < 0 || bytes < 0 || offset > head->image_bytes - bytes) return "";
  std::string text(static_cast<size_t>(bytes), '\0');
  const ssize_t got = pread(fd_, text.data(), text.size(), slot_at(slot_of(step), head->image_bytes) + offset);
  return got == static_cast<ssize_t>(bytes) ? text : "";
}

}  // namespace trainctl
