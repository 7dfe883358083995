// Decoded blocks of files that cannot be read row by row: row groups of Parquet, compressed shards of MDS. One cache
// serves all files of the process. It keeps the blocks that were used last, up to a sixteenth of the host's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace trainctl {

class CachedBlock {
 public:
  virtual ~CachedBlock() = default;
};

/// The blocks of one file. They leave the cache when this object is destroyed.
class BlockCache {
 public:
  struct Loaded {
    std::shared_ptr<const CachedBlock> block;
    int64_t bytes = 0;
  };

  BlockCache();
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  /// Returns a block, which `load` decodes if it is not cached. If several threads need the same block, one decodes it
  /// and the others wait. Throws the error of `load`.
  std::shared_ptr<const CachedBlock> get(int64_t number, const std::function<Loaded()>& load) const;

 private:
  uint64_t owner_;
};

}  // namespace trainctl
