// Decoded blocks of files that cannot be read row by row: row groups of Parquet, compressed shards of MDS.
#include "engine/train/data/tables/block_cache.h"

#include <algorithm>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include "engine/planning/device_data.h"

namespace trainctl {
namespace {

using BlockKey = std::pair<uint64_t, int64_t>;

struct BlockEntry {
  std::shared_future<BlockCache::Loaded> block;
  int64_t bytes = 0;  ///< 0 while it is being decoded
  std::list<BlockKey>::iterator use;
};

struct AllBlocks {
  std::mutex mutex;
  std::map<BlockKey, BlockEntry> entries;
  std::list<BlockKey> uses;  ///< the block that was used last comes first
  int64_t bytes = 0;
  uint64_t owners = 0;

  void remove(const BlockKey& key) {
    const auto found = entries.find(key);
    if (found == entries.end()) return;
    bytes -= found->second.bytes;
    uses.erase(found->second.use);
    entries.erase(found);
  }

  void shrink(int64_t most) {
    for (auto at = uses.end(); bytes > most && uses.size() > 1 && at != uses.begin();) {
      const BlockKey key = *--at;
      if (at == uses.begin() || entries.at(key).bytes == 0) continue;
      ++at;
      remove(key);
    }
  }
};

AllBlocks& all_blocks() {
  static auto* blocks = new AllBlocks;  // readers may outlive static objects
  return *blocks;
}

}  // namespace

BlockCache::BlockCache() {
  AllBlocks& all = all_blocks();
  const std::lock_guard lock(all.mutex);
  owner_ = all.owners++;
}

BlockCache::~BlockCache() {
  AllBlocks& all = all_blocks();
  const std::lock_guard lock(all.mutex);
  for (auto at = all.entries.lower_bound({owner_, INT64_MIN}); at != all.entries.end() && at->first.first == owner_;)
    all.remove((at++)->first);
}

std::shared_ptr<const CachedBlock> BlockCache::get(int64_t number, const std::function<Loaded()>& load) const {
  AllBlocks& all = all_blocks();
  const BlockKey key{owner_, number};
  std::promise<Loaded> promise;
  {
    std::unique_lock lock(all.mutex);
    const auto found = all.entries.find(key);
    if (found != all.entries.end()) {
      all.uses.splice(all.uses.begin(), all.uses, found->second.use);
      const std::shared_future<Loaded> block = found->second.block;
      lock.unlock();
      return block.get().block;
    }
    all.uses.push_front(key);
    all.entries[key] = {promise.get_future().share(), 0, all.uses.begin()};
  }
  try {
    Loaded loaded = load();
    promise.set_value(loaded);
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.entries.find(key); found != all.entries.end()) {
      found->second.bytes = std::max<int64_t>(loaded.bytes, 1);
      all.bytes += found->second.bytes;
    }
    all.shrink(most_cached_bytes());
    return loaded.block;
  } catch (...) {
    promise.set_exception(std::current_exception());
    const std::lock_guard lock(all.mutex);
    all.remove(key);
    throw;
  }
}

}  // namespace trainctl
