// An object of a store that is read at any place, through a cache of blocks on the local disk.
//
//   $XDG_CACHE_HOME/trainctl/objects/<digest of address, version and size>/<block>     kBlockBytes each
//
// All processes of a host share the cache. A block appears with its whole content: it is written under another name,
// synced and renamed. When the blocks exceed the limit, those that were used least recently are deleted; a reader whose
// block has gone fetches it again. If the folder cannot be written, blocks are kept in memory. Up to kMostFetches
// blocks are fetched at once: those of one read, those that follow a sequential read, and those of expect().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/train/files/store/objects.h"

namespace trainctl::object_store {

inline constexpr int64_t kBlockBytes = int64_t{2} << 20;

/// At 200 ms per request, 64 of them fetch 640 MB/s.
inline constexpr int kMostFetches = 64;

/// The limit of the cache of this process's host, in bytes; 0: the default.
void set_cache_limit(int64_t bytes);
/// Bytes of an object that the cache keeps at least: the limit above, or less if the object's blocks are not kept on a
/// disk.
int64_t cache_bytes();
/// The blocks that expect() has requested on this thread.
int64_t requested_blocks();

class RemoteFile {
 public:
  /// Throws EnvError if the object does not exist or cannot be read.
  explicit RemoteFile(std::string url);
  ~RemoteFile();
  RemoteFile(const RemoteFile&) = delete;
  RemoteFile& operator=(const RemoteFile&) = delete;

  int64_t bytes() const { return info_.bytes; }
  /// Names the content: the version that the store gives.
  std::string identity() const { return info_.version; }
  /// Fills `to`, which is inside the object. Any number of threads may read.
  void read(int64_t at, std::span<uint8_t> to) const;
  /// Starts fetching the blocks of these bytes.
  void expect(int64_t at, int64_t bytes) const;

 private:
  struct Blocks;
  std::string url_;
  ObjectInfo info_;
  std::shared_ptr<Blocks> blocks_;
};

}  // namespace trainctl::object_store
