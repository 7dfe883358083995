// The protocol between a launcher and an agent, in both directions. Little-endian; a text extends to the end of its
// frame.
//
//   stream  := frame*
//   frame   := size:u32 kind:u8 body                       size: of kind and body, at most kMaxFrameBytes
//   join    := 'J' version:u32 connection:u64 received:u64 token         the launcher's first frame
//   welcome := 'W' version:u32 received:u64                              the agent's reply, after authentication only
//   message := 'M' number:u64 message                                    numbered from 1, without gaps
//   alive   := 'A' received:u64                                          twice a second
//   message := kind:u8 attempt:u32 rank:i32 number:i64 name_size:u16 name text
//
// `received` is the highest number received without a gap: messages with higher numbers are sent again after a join,
// and confirmed ones are discarded. `connection` increases with each connection; an agent refuses a lower one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace trainctl::hosts {

inline constexpr uint32_t kVersion = 5;
inline constexpr uint32_t kMaxFrameBytes = 2 << 20;
/// Largest text of a message; larger data is sent in pieces.
inline constexpr size_t kMaxTextBytes = 1 << 20;
inline constexpr size_t kMaxNameBytes = 4096;
inline constexpr size_t kMaxTokenBytes = 128;

struct Message {
  enum class Kind : uint8_t {
    // Sent by the launcher.
    prepare = 'P',  ///< text: JSON, the description of an attempt
    start = 'S',    ///< rank; text: JSON, its command
    signal = 'K',   ///< rank; number: the signal
    hold = 'H',     ///< start no more steps, and reply with `gates_held`
    stop = 'Z',     ///< number: the last step
    release = 'L',  ///< resume after `hold`
    give = 'Q',     ///< name: name of a file; number: offset; text: bytes
    copy = 'X',     ///< name: name of a copy (copies.h), "/" and a file in it; rank: 1 if executable; number: offset;
                    ///< text: bytes
    keep = 'W',     ///< name: name of a copy whose files have all been sent
    end = 'E',      ///< end all processes, delete everything, exit
    // Sent by the agent.
    ready = 'R',       ///< text: JSON, a description of the host; after prepare
    refused = 'U',     ///< text: why the attempt cannot run here
    started = 'B',     ///< rank
    no_start = 'N',    ///< rank; text: why it could not be started
    ended = 'D',       ///< rank; text: JSON, a RankReport
    frozen = 'F',      ///< rank; number: 1 if its process is stopped, 0 if it no longer is
    gates_held = 'G',  ///< number: the highest step started
    output = 'O',      ///< rank; name: "stdout" or "stderr"; number: unix ns; text: bytes
    file = 'I',        ///< name: a path in the run's folder; number: offset; text: bytes; offset 0 replaces the file
    notice = 'T',      ///< text: for the user
    // Sent by both sides.
    board = 'C',  ///< text: statuses of ranks (engine/runtime/comm/board_changes.h)
    save = 'Y',   ///< a SaveMessage (agent.h)
    value = 'V',  ///< name: a key of the store; text: its value
    links = 'M',  ///< launcher: connect to these, text: JSON, [[name, address, port], …]; reply of the agent:
                  ///< text: JSON, {name: fault} for unreachable hosts (link_check.h)
  } kind = Kind::end;
  uint32_t attempt = 0;
  int32_t rank = -1;
  int64_t number = 0;
  std::string name, text;
  friend bool operator==(const Message&, const Message&) = default;
};

struct Join {
  uint32_t version = kVersion;
  uint64_t connection = 0, received = 0;
  std::string token;
};
struct Welcome {
  uint32_t version = kVersion;
  uint64_t received = 0;
};
struct Numbered {
  uint64_t number = 0;
  Message message;
};
struct Alive {
  uint64_t received = 0;
};
using Frame = std::variant<Join, Welcome, Numbered, Alive>;

/// The result begins with its size.
std::string encode(const Frame& frame);
/// A frame without its size; nullopt if it does not follow the grammar.
std::optional<Frame> parse_frame(std::string_view body);

/// Cuts a stream into frames.
class FrameReader {
 public:
  void feed(std::string_view bytes) { buffer_ += bytes; }
  /// The next complete frame; nullopt if there is none yet, or the stream is broken.
  std::optional<Frame> next();
  /// Returns whether a frame was too large or did not follow the grammar, so that the rest cannot be read.
  bool broken() const { return broken_; }

 private:
  std::string buffer_;
  size_t taken_ = 0;
  bool broken_ = false;
};

}  // namespace trainctl::hosts
