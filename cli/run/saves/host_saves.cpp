// A host's side of saves on several hosts. The agent of a host calls next() and sends the messages to the launcher, and
// passes the launcher's messages to take(). host_saves.h lists all messages; GatheredSaves is the launcher's side.
//
// The ranks of the host write to the host's SaveBoard, and next() reports what is new there. These messages differ in
// what the ranks want:
//
//   wanted    a rank has come to a step at which all ranks ask whether the state before it is saved (for example, since
//             a save is due by step count), and waits for the answer of the launcher, "decided"
//   asked     a save is due by time, so the launcher should choose a step for it; no rank waits
//   awaits    the ranks have run their last step and wait for the save in progress, so that the last state can be saved
//
// Once a save has been decided, each rank copies its state to its image, and next() sends the images in pieces. The
// number of a save is a step: the saved state is the state before that step.
#include "cli/run/saves/host_saves.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr int64_t kPieceBytes = 512 << 10;  ///< most bytes of an image in one message

}  // namespace

HostSaves::HostSaves(std::shared_ptr<SharedMemory> memory, const std::vector<int>& ranks, int64_t first,
                     bool steps_await)
    : memory_(std::move(memory)) {
  for (const int rank : ranks) {
    const int fd = memfd_create("trainctl-state", 0);
    if (fd < 0) throw EnvError(std::string("cannot allocate memory for checkpoints: ") + std::strerror(errno));
    images_[rank].fd = fd;
  }
  memory_->saves().decide_elsewhere(steps_await);  // from now on the launcher decides which states are saved
  if (first >= 0) memory_->saves().begin_at(first);
}

HostSaves::~HostSaves() {
  for (const auto& [rank, image] : images_) close(image.fd);
}

std::optional<hosts::SaveMessage> HostSaves::next() {
  SaveBoard& board = memory_->saves();
  if (const int64_t wanted = board.wanted(); wanted > wanted_) {
    wanted_ = wanted;
    return hosts::SaveMessage{.name = "wanted", .number = wanted};
  }
  if (const uint64_t asked = board.asked(); asked != asked_) {
    asked_ = asked;
    return hosts::SaveMessage{.name = "asked"};
  }
  if (const int64_t validated = board.validated(); validated != validated_) {
    validated_ = validated;
    const SaveBoard::Position& position = *board.validation_of(validated);
    return hosts::SaveMessage{
        .name = "validated", .number = validated, .text = {reinterpret_cast<const char*>(&position), sizeof position}};
  }
  if (const int64_t awaits = board.awaits_room(); awaits > awaits_) {
    awaits_ = awaits;
    return hosts::SaveMessage{.name = "awaits", .number = awaits};
  }
  const int64_t step = board.saving();
  if (step < 0) return std::nullopt;
  // The position of a step may be reported more than once, at first without the validation of that step. It is reported
  // again when the copy of rank 0's state begins, so it is sent only when that copy is complete. A validation that ends
  // later follows in "validated".
  const bool is_copied = memory_->status(0).copied.load(std::memory_order_acquire) == static_cast<uint64_t>(step) + 1;
  if (step != reported_ && is_copied && board.is_reported(step)) {
    reported_ = step;
    const SaveBoard::Position position = board.position();
    return hosts::SaveMessage{
        .name = "position", .number = step, .text = {reinterpret_cast<const char*>(&position), sizeof position}};
  }
  for (auto& [rank, image] : images_)
    if (auto message = next_of(rank, image, step)) return message;
  return std::nullopt;
}

/// Returns the next message that sends the image of a rank to the launcher: "sized" if its size has changed, then
/// "image" for each piece, then "copied". Empty if the rank has not yet copied its state before `step` to the image, or
/// if all of the image has been sent.
std::optional<hosts::SaveMessage> HostSaves::next_of(int rank, Image& image, int64_t step) {
  const bool is_copied =
      memory_->status(rank).copied.load(std::memory_order_acquire) == static_cast<uint64_t>(step) + 1;
  if (!is_copied || image.done == step) return std::nullopt;
  if (std::exchange(image.step, step) != step) image.sent = 0;
  struct stat info {};
  if (fstat(image.fd, &info) != 0) return std::nullopt;
  if (image.size != info.st_size) {
    image.size = info.st_size;
    return hosts::SaveMessage{.name = "sized", .rank = rank, .number = image.size};
  }
  if (image.sent < image.size) {
    std::string piece(static_cast<size_t>(std::min(kPieceBytes, image.size - image.sent)), '\0');
    const ssize_t got = pread(image.fd, piece.data(), piece.size(), image.sent);
    if (got <= 0) return std::nullopt;
    piece.resize(static_cast<size_t>(got));
    const int64_t offset = image.sent;
    image.sent += got;
    return hosts::SaveMessage{.name = "image", .rank = rank, .number = offset, .text = std::move(piece)};
  }
  image.sent = 0;
  image.done = step;
  return hosts::SaveMessage{.name = "copied", .rank = rank, .number = step};
}

void HostSaves::take(const hosts::SaveMessage& message) {
  SaveBoard& board = memory_->saves();
  if (message.name == "decided") {
    const int64_t step = message.number / 2;  // GatheredSaves::decide sends 2 * step, plus 1 if the state is saved
    const bool saves = message.number % 2 != 0;
    board.decided(step, saves);
  }
  // Ranks that wait for the writer only check whether this number changes, not by how much.
  if (message.name == "progress") board.written_bytes.fetch_add(1, std::memory_order_relaxed);
  if (message.name == "refused") board.try_failed();
  if (message.name == "finished") board.finished(message.number != 0);
}

}  // namespace trainctl
