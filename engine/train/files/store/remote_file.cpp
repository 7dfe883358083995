// An object of a store that is read at any place, through a cache of blocks on the local disk.
#include "engine/train/files/store/remote_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/base/cache_folder.h"
#include "engine/base/error.h"
#include "engine/base/file_wait.h"
#include "engine/base/url.h"
#include "engine/train/files/digest.h"

namespace trainctl::object_store {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kReadAheadBlocks = 16, kLeastReadAhead = 4;  ///< the former where they fill little of the cache
constexpr int64_t kDefaultLimit = int64_t{16} << 30;
constexpr size_t kBlocksInMemory = 32;  ///< without a disk

std::atomic<int64_t> wanted_limit = 0;
std::atomic<bool> is_some_in_memory = false;  ///< blocks of an object are not kept on a disk
thread_local int64_t requested_here = 0;

fs::path objects_folder() {
  const fs::path root = cache_folder();
  return root.empty() ? fs::path() : root / "objects";
}

/// Deletes blocks that were used least recently once there are too many.
class DiskLimit {
 public:
  /// Counts a block that has been written.
  void added(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    written_ += bytes;
    if (has_counted_ && total_ + written_ <= limit() && written_ < kCountEvery) return;
    shrink();
  }

  static int64_t limit() {
    if (wanted_limit > 0) return wanted_limit;
    struct statvfs disk {};
    if (statvfs(objects_folder().c_str(), &disk) != 0) return kDefaultLimit;
    return std::min(kDefaultLimit, static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize) / 4);
  }

 private:
  /// Other processes write too, so the total is counted again after this many bytes.
  static constexpr int64_t kCountEvery = int64_t{256} << 20;

  void shrink() {
    struct Block {
      fs::file_time_type used;
      int64_t bytes;
      fs::path path;
    };
    std::vector<Block> blocks;
    total_ = 0;
    std::error_code error;
    for (fs::recursive_directory_iterator at(objects_folder(), error), end; !error && at != end; at.increment(error)) {
      std::error_code ignored;
      if (!at->is_regular_file(ignored)) continue;
      const Block block{at->last_write_time(ignored), static_cast<int64_t>(at->file_size(ignored)), at->path()};
      if (ignored) continue;  // another process has deleted it
      total_ += block.bytes;
      blocks.push_back(block);
    }
    has_counted_ = true;
    written_ = 0;
    const int64_t most = limit();
    if (total_ <= most) return;
    std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.used < b.used; });
    for (const Block& block : blocks) {
      if (total_ <= most - most / 10) break;
      std::error_code ignored;
      fs::remove(block.path, ignored);
      fs::remove(block.path.parent_path(), ignored);  // only if it is empty
      total_ -= block.bytes;
    }
  }

  std::mutex mutex_;
  bool has_counted_ = false;
  int64_t total_ = 0, written_ = 0;
};

DiskLimit& disk_limit() {
  static auto* limit = new DiskLimit;  // threads that fetch may use it until the process ends
  return *limit;
}

/// Threads that fetch blocks. They are never joined, because a request may hang at the end of the process.
class FetchPool {
 public:
  /// `urgent` work, which a reader waits for, comes before what is only expected.
  void add(std::function<void()> work, bool urgent) {
    const std::lock_guard lock(mutex_);
    if (urgent)
      queue_.push_front(std::move(work));
    else
      queue_.push_back(std::move(work));
    if (static_cast<int>(queue_.size()) > idle_ && threads_ < kMostFetches) {  // idle ones may not have woken up yet
      ++threads_;
      std::thread([this] { run(); }).detach();
    }
    ready_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      ++idle_;
      ready_.wait(lock, [this] { return !queue_.empty(); });
      --idle_;
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> queue_;
  int idle_ = 0, threads_ = 0;
};

FetchPool& fetch_pool() {
  static auto* pool = new FetchPool;  // lives as long as its threads
  return *pool;
}

struct OpenDescriptor {
  explicit OpenDescriptor(int number) : fd(number) {}
  ~OpenDescriptor() {
    if (fd >= 0) close(fd);
  }
  OpenDescriptor(const OpenDescriptor&) = delete;
  OpenDescriptor& operator=(const OpenDescriptor&) = delete;
  int fd;
};

bool read_all(int fd, int64_t at, std::span<uint8_t> to) {
  while (!to.empty()) {
    const ssize_t got = pread(fd, to.data(), to.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to = to.subspan(static_cast<size_t>(got));
    at += got;
  }
  return true;
}

bool write_all(int fd, std::span<const uint8_t> from) {
  while (!from.empty()) {
    const ssize_t put = write(fd, from.data(), from.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    from = from.subspan(static_cast<size_t>(put));
  }
  return true;
}

}  // namespace

void set_cache_limit(int64_t bytes) {
  if (bytes > 0) wanted_limit = bytes;
}

int64_t cache_bytes() {
  const int64_t in_memory = static_cast<int64_t>(kBlocksInMemory) * kBlockBytes;
  return is_some_in_memory ? std::min(in_memory, DiskLimit::limit()) : DiskLimit::limit();
}

int64_t requested_blocks() { return requested_here; }

/// The blocks of one object. Fetches hold it while they run.
struct RemoteFile::Blocks : std::enable_shared_from_this<RemoteFile::Blocks> {
  using Bytes = std::shared_ptr<const std::vector<uint8_t>>;
  struct Fetch {
    std::atomic<bool> has_begun = false;
    bool done = false;
    std::exception_ptr error;
    Bytes bytes;
  };

  std::string url;
  ObjectInfo info;
  fs::path folder;  ///< empty: there is no disk for blocks
  std::mutex mutex;
  std::condition_variable fetched;
  std::map<int64_t, std::shared_ptr<Fetch>> fetches;  ///< fetches under way, by block
  std::list<std::pair<int64_t, Bytes>> in_memory;     ///< recently used first
  std::map<int64_t, std::chrono::steady_clock::time_point> touched;
  std::atomic<int64_t> last_block = -2;

  int64_t size_of(int64_t block) const { return std::min(kBlockBytes, info.bytes - block * kBlockBytes); }
  int64_t count() const { return (info.bytes + kBlockBytes - 1) / kBlockBytes; }
  fs::path path_of(int64_t block) const { return folder / std::to_string(block); }

  bool is_on_disk(int64_t block) const {
    struct stat status {};
    return !folder.empty() && stat(path_of(block).c_str(), &status) == 0 && status.st_size == size_of(block);
  }

  /// Returns false if the block is not on the disk.
  bool read_from_disk(int64_t block, int64_t within, std::span<uint8_t> to) {
    if (folder.empty()) return false;
    const std::string path = path_of(block).string();
    const OpenDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (file.fd < 0 || fstat(file.fd, &status) != 0 || status.st_size != size_of(block)) return false;
    if (!read_all(file.fd, within, to)) return false;
    touch(block, file.fd);
    return true;
  }

  /// Records that the block was used now: the time of the last use decides which blocks are deleted first.
  void touch(int64_t block, int fd) {
    constexpr auto kEvery = std::chrono::seconds(60);
    const auto now = std::chrono::steady_clock::now();
    {
      const std::lock_guard lock(mutex);
      auto& last = touched[block];
      if (last.time_since_epoch().count() != 0 && now - last < kEvery) return;
      last = now;
    }
    futimens(fd, nullptr);
  }

  /// Returns false if the folder cannot be written.
  bool write_to_disk(int64_t block, std::span<const uint8_t> bytes) {
    std::error_code error;
    fs::create_directories(folder, error);
    static std::atomic<uint64_t> counter = 0;
    const std::string path = path_of(block).string();
    const std::string part = fmt::format("{}.{}.{}.part", path, getpid(), counter++);
    {
      const OpenDescriptor file(open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
      if (file.fd < 0 || !write_all(file.fd, bytes) || fdatasync(file.fd) != 0) {
        unlink(part.c_str());
        return false;
      }
    }
    if (rename(part.c_str(), path.c_str()) != 0) {
      unlink(part.c_str());
      return false;
    }
    disk_limit().added(static_cast<int64_t>(bytes.size()));
    return true;
  }

  /// The fetch of a block, which is started unless it is under way. One that waits in the queue moves to its front if
  /// it has become urgent.
  std::shared_ptr<Fetch> start(int64_t block, bool urgent) {
    const std::lock_guard lock(mutex);
    const auto [known, added] = fetches.try_emplace(block);
    if (added) known->second = std::make_shared<Fetch>();
    const std::shared_ptr<Fetch> fetch = known->second;
    if (added || (urgent && !fetch->has_begun))
      fetch_pool().add([self = shared_from_this(), block, fetch] { self->run(block, *fetch); }, urgent);
    if (added && !urgent) ++requested_here;
    return fetch;
  }

  /// Fetches a block. Readers get its bytes before they are on the disk, because syncing them takes as long as some
  /// requests.
  void run(int64_t block, Fetch& fetch) {
    if (fetch.has_begun.exchange(true)) return;  // it was in the queue twice
    auto bytes = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(size_of(block)));
    std::exception_ptr error;
    bool is_on_disk = false;
    try {
      is_on_disk = read_from_disk(block, 0, *bytes);  // another process may have fetched it
      if (!is_on_disk) read_object(url, info, block * kBlockBytes, *bytes);
    } catch (...) {
      error = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex);
      fetch.done = true;
      fetch.error = error;
      if (!error) {
        fetch.bytes = bytes;
        if (folder.empty()) keep_in_memory(block, bytes);
      }
      fetched.notify_all();
    }
    const bool is_lost = !error && !is_on_disk && !folder.empty() && !write_to_disk(block, *bytes);
    const std::lock_guard lock(mutex);
    if (is_lost) keep_in_memory(block, bytes);
    fetches.erase(block);
  }

  void keep_in_memory(int64_t block, Bytes bytes) {
    is_some_in_memory = true;
    in_memory.emplace_front(block, std::move(bytes));
    if (in_memory.size() > kBlocksInMemory) in_memory.pop_back();
  }

  bool is_in_memory(int64_t block) {
    const std::lock_guard lock(mutex);
    return std::any_of(in_memory.begin(), in_memory.end(), [&](const auto& one) { return one.first == block; });
  }

  bool read_from_memory(int64_t block, int64_t within, std::span<uint8_t> to) {
    const std::lock_guard lock(mutex);
    const auto found =
        std::find_if(in_memory.begin(), in_memory.end(), [&](const auto& one) { return one.first == block; });
    if (found == in_memory.end()) return false;
    in_memory.splice(in_memory.begin(), in_memory, found);
    std::copy_n(found->second->begin() + within, to.size(), to.begin());
    return true;
  }

  void expect_block(int64_t block) {
    if (block < 0 || block >= count() || is_on_disk(block) || is_in_memory(block)) return;
    start(block, false);
  }

  void read_block(int64_t block, int64_t within, std::span<uint8_t> to) {
    if (read_from_memory(block, within, to) || read_from_disk(block, within, to)) return;
    const std::shared_ptr<Fetch> fetch = start(block, true);
    std::unique_lock lock(mutex);
    fetched.wait(lock, [&] { return fetch->done; });
    if (fetch->error) std::rethrow_exception(fetch->error);
    std::copy_n(fetch->bytes->begin() + within, to.size(), to.begin());
  }
};

RemoteFile::RemoteFile(std::string url) : url_(std::move(url)), blocks_(std::make_shared<Blocks>()) {
  const std::string shown = shown_url(url_);
  const FileWait wait(shown);
  info_ = object_info(url_);
  blocks_->url = url_;
  blocks_->info = info_;
  // Without a version nothing shows that an object has changed, so its blocks are not kept for other runs.
  if (const fs::path root = objects_folder(); !root.empty() && !info_.version.empty())
    blocks_->folder = root / digest_of(shown + "\n" + info_.version + "\n" + std::to_string(info_.bytes));
  else
    is_some_in_memory = true;
}

RemoteFile::~RemoteFile() = default;

void RemoteFile::read(int64_t at, std::span<uint8_t> to) const {
  const std::string shown = shown_url(url_);
  const FileWait wait(shown);
  if (to.empty()) return;
  const int64_t first = at / kBlockBytes, last = (at + static_cast<int64_t>(to.size()) - 1) / kBlockBytes;
  for (int64_t block = first + 1; block <= last; ++block) blocks_->expect_block(block);
  const int64_t before = blocks_->last_block.exchange(last);
  const bool is_sequential = first == before + 1 || (first == before && last > before);
  if (is_sequential) {
    const int64_t ahead = std::clamp(cache_bytes() / kBlockBytes / 16, kLeastReadAhead, kReadAheadBlocks);
    for (int64_t i = 1; i <= ahead; ++i) blocks_->expect_block(last + i);
  }
  for (int64_t block = first; block <= last; ++block) {
    const int64_t within = std::max<int64_t>(0, at - block * kBlockBytes);
    const int64_t count = std::min<int64_t>(blocks_->size_of(block) - within, static_cast<int64_t>(to.size()));
    blocks_->read_block(block, within, to.first(static_cast<size_t>(count)));
    to = to.subspan(static_cast<size_t>(count));
  }
}

void RemoteFile::expect(int64_t at, int64_t bytes) const {
  if (bytes <= 0) return;
  for (int64_t block = at / kBlockBytes; block <= (at + bytes - 1) / kBlockBytes; ++block) blocks_->expect_block(block);
}

}  // namespace trainctl::object_store
