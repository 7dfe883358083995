// The files that a host still has to receive from the launcher, which sends them in pieces as fast as the agent
// confirms them.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "launcher/hosts/copies.h"
#include "launcher/hosts/host_link.h"

namespace trainctl::hosts {

class FileQueue {
 public:
  /// A file of the run, under this name on the host.
  void add_file(const std::string& name, const std::string& path);
  /// All files of a copy, and the message that it is complete.
  void add_copy(const Copy& copy);
  void clear() { files_.clear(); }
  bool empty() const { return files_.empty(); }

  /// Sends pieces while few enough bytes are unconfirmed. If a file cannot be read, the host is lost.
  void send_some(HostLink& link, uint32_t attempt);

 private:
  struct File {
    Message::Kind kind = Message::Kind::give;  ///< keep: only the name is sent
    std::string name, path;
    int rank = -1;  ///< a copy: 1 if it is executable
    int64_t offset = 0;
  };
  std::deque<File> files_;
};

}  // namespace trainctl::hosts
