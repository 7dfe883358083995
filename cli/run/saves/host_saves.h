// Saves on several hosts. Each host has a SaveBoard and its ranks' images; the launcher has the board that the writer
// reads, and a copy of all images. They exchange these messages, in order:
//
//   host ──▶ launcher   wanted   number: a step            its ranks ask whether the state before it is saved
//                       asked                              a save is due by time
//                       position number: the step; text: SaveBoard::Position
//                       sized    rank; number: the bytes of its image
//                       image    rank; number: offset; text: bytes
//                       copied   rank; number: the step    its whole image has been sent
//                       awaits   number: a step            SaveBoard::await_room
//   launcher ──▶ host   decided  number: 2 * step, plus 1 for yes
//                       finished number: 1 if it was written, or is kept by the launcher until then
//                       progress                           the disk is still writing
//                       refused                            SaveBoard::try_failed
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "engine/runtime/comm/shared_memory.h"
#include "launcher/hosts/agent.h"

namespace trainctl {

/// A host's side.
class HostSaves {
 public:
  /// Makes an image for each of the host's ranks. The run resumes from the state before step `first`; -1: it is new.
  /// `steps_await`: SaveAfter::gathered (cli/run/saves/gathered_saves.h). Throws EnvError.
  HostSaves(std::shared_ptr<SharedMemory> memory, const std::vector<int>& ranks, int64_t first,
            bool steps_await = false);
  ~HostSaves();
  HostSaves(const HostSaves&) = delete;
  HostSaves& operator=(const HostSaves&) = delete;

  /// A memfd that the rank sizes and fills.
  int image(int rank) const { return images_.at(rank).fd; }
  /// The next message for the launcher; nullopt: none now.
  std::optional<hosts::SaveMessage> next();
  /// Handles a message from the launcher.
  void take(const hosts::SaveMessage& message);

 private:
  struct Image {
    int fd = -1;
    int64_t size = -1;  ///< size that was sent to the launcher; -1: none
    int64_t step = -1;  ///< step of the save that `sent` refers to
    int64_t sent = 0;
    int64_t done = -1;  ///< step of the last save that was sent completely
  };
  std::optional<hosts::SaveMessage> next_of(int rank, Image& image, int64_t step);

  std::shared_ptr<SharedMemory> memory_;
  std::map<int, Image> images_;
  int64_t wanted_ = -1, reported_ = -1, validated_ = -1, awaits_ = -1;
  uint64_t asked_ = 0;
};

}  // namespace trainctl
