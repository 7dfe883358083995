// The file of an LMDB environment (data.mdb), read without its library, which trusts the file.
#include "engine/train/data/tables/lmdb_pages.h"

#include <fmt/format.h>

#include <cstring>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr uint64_t kLmdbHeaderBytes = 16, kLmdbNodeBytes = 8;
constexpr uint32_t kLmdbMagic = 0xBEEFC0DE;
constexpr uint16_t kBranch = 0x01, kLeaf = 0x02, kOverflow = 0x04, kMeta = 0x08;
constexpr uint16_t kBigData = 0x01, kSubData = 0x02, kDuplicates = 0x04;  // flags of nodes
constexpr uint64_t kNoPage = ~uint64_t{0};
constexpr int kMostLmdbDepth = 64;

class LmdbReader {
 public:
  LmdbReader(std::span<const uint8_t> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  std::vector<LmdbEntry> entries() {
    read_meta();
    if (root_ != kNoPage) walk(root_, 0);
    if (entries_.size() != expected_)
      fail(fmt::format("it should have {} entries, but has {}", expected_, entries_.size()));
    return std::move(entries_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw EnvError(file_ + ": is a damaged LMDB file: " + what); }

  template <class T>
  T at(uint64_t place) const {
    if (place > bytes_.size() || bytes_.size() - place < sizeof(T)) fail("it is truncated");
    T value;
    std::memcpy(&value, bytes_.data() + place, sizeof value);
    return value;
  }

  void read_meta() {
    constexpr uint64_t kLmdbMagicAt = kLmdbHeaderBytes, kFirstDb = kLmdbMagicAt + 24, kMainDb = kFirstDb + 48;
    constexpr uint64_t kTransactionAt = kMainDb + 48 + 8;
    if (bytes_.size() < kTransactionAt + 8 || at<uint32_t>(kLmdbMagicAt) != kLmdbMagic)
      throw EnvError(file_ + ": is not an LMDB file");
    if (at<uint32_t>(kLmdbMagicAt + 4) != 1) throw EnvError(file_ + ": is of another version of LMDB");
    page_bytes_ = at<uint32_t>(kFirstDb);
    if (page_bytes_ < 256 || page_bytes_ > 65'536 || (page_bytes_ & (page_bytes_ - 1)) != 0)
      fail(fmt::format("it has pages of {} bytes", page_bytes_));
    uint64_t meta = 0;
    const uint64_t second = page_bytes_;
    if (at<uint32_t>(second + kLmdbMagicAt) == kLmdbMagic &&
        at<uint64_t>(second + kTransactionAt) > at<uint64_t>(kTransactionAt))
      meta = second;
    if ((at<uint16_t>(meta + kMainDb + 4) & kDuplicates) != 0)
      throw EnvError(file_ + ": has several values of a key, which is not supported");
    expected_ = at<uint64_t>(meta + kMainDb + 32);
    root_ = at<uint64_t>(meta + kMainDb + 40);
    if (expected_ > bytes_.size() / kLmdbNodeBytes) fail("it counts more entries than fit");
    entries_.reserve(expected_);
  }

  /// Start of a page.
  uint64_t page(uint64_t number) const {
    if (number >= bytes_.size() / page_bytes_) fail(fmt::format("page {} is outside of the file", number));
    return number * page_bytes_;
  }

  void walk(uint64_t number, int depth) {
    if (depth > kMostLmdbDepth) fail("the tree is too deep");
    if (++visited_ > bytes_.size() / page_bytes_) fail("a page occurs twice");
    const uint64_t start = page(number);
    const auto flags = at<uint16_t>(start + 10);
    const auto lower = at<uint16_t>(start + 12);
    if (lower < kLmdbHeaderBytes || lower > page_bytes_) fail(fmt::format("page {} has no list of nodes", number));
    for (uint64_t place = kLmdbHeaderBytes; place < lower; place += 2) {
      const uint64_t node = start + at<uint16_t>(start + place);
      const uint64_t end = start + page_bytes_;
      if (node + kLmdbNodeBytes > end) fail("a node is outside of its page");
      const auto low = at<uint16_t>(node), middle = at<uint16_t>(node + 2), high = at<uint16_t>(node + 4);
      if ((flags & kBranch) != 0)
        walk(uint64_t{low} | uint64_t{middle} << 16 | uint64_t{high} << 32, depth + 1);
      else if ((flags & kLeaf) != 0 && (flags & (kOverflow | kMeta)) == 0)
        add_entry(node, end, uint64_t{low} | uint64_t{middle} << 16, high);
      else
        fail(fmt::format("page {} is neither a branch nor a leaf", number));
    }
  }

  void add_entry(uint64_t node, uint64_t end, uint64_t value_bytes, uint16_t flags) {
    if ((flags & (kSubData | kDuplicates)) != 0)
      throw EnvError(file_ + ": has databases with names, or several values of a key, which is not supported");
    const uint64_t key = node + kLmdbNodeBytes, key_bytes = at<uint16_t>(node + 6);
    if (key + key_bytes > end) fail("a key exceeds its page");
    uint64_t value = key + key_bytes;
    if ((flags & kBigData) != 0) {
      if (value + sizeof(uint64_t) > end) fail("a value exceeds its page");
      const uint64_t start = page(at<uint64_t>(value));
      if ((at<uint16_t>(start + 10) & kOverflow) == 0) fail("a value is on a page of another kind");
      value = start + kLmdbHeaderBytes;
      end = bytes_.size();
    }
    if (value_bytes > end - value) fail("a value exceeds its page");
    if (entries_.size() >= expected_) fail("it has more entries than it counts");
    const char* begin = reinterpret_cast<const char*>(bytes_.data());
    entries_.push_back({{begin + key, key_bytes}, {begin + value, value_bytes}});
  }

  std::span<const uint8_t> bytes_;
  const std::string& file_;
  uint64_t page_bytes_ = 0, expected_ = 0, root_ = kNoPage, visited_ = 0;
  std::vector<LmdbEntry> entries_;
};

}  // namespace

std::vector<LmdbEntry> read_lmdb(std::span<const uint8_t> bytes, const std::string& file) {
  return LmdbReader(bytes, file).entries();
}

}  // namespace trainctl
