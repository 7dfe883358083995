// The chunks of an HDF5 dataset: where they are in the file, and their values after the filters.
#include "engine/train/data/tables/hdf5_chunks.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/checked.h"
#include "engine/train/data/inflated_file.h"

namespace trainctl {
namespace {

constexpr uint16_t kDeflate = 1, kShuffle = 2, kFletcher32 = 3, kLzf = 32000, kHdf5Zstd = 32015;

class ChunkIndexReader {
 public:
  ChunkIndexReader(const Hdf5Bytes& file, const Hdf5Dataset& set)
      : file_(file), set_(set), path_(file.file.path()), grid_(hdf5_chunk_grid(set)), bytes_(hdf5_chunk_bytes(set)) {
    for (const uint64_t count : grid_) all_ *= count;
  }

  Hdf5Chunks chunks() {
    if (set_.address == kNoHdf5Address) return {};  // nothing was written
    if (set_.index == Hdf5Index::btree) visit(set_.address, -1);
    if (set_.index == Hdf5Index::single) {
      const uint64_t bytes = set_.single_bytes > 0 ? set_.single_bytes : bytes_;
      chunks_[0] = {set_.address, bytes, set_.single_mask};
    }
    if (set_.index == Hdf5Index::implicit) {
      if (all_ > static_cast<uint64_t>(file_.file.bytes())) fail("it has more chunks than bytes");
      for (uint64_t c = 0; c < all_; ++c) chunks_[c] = {set_.address + c * bytes_, bytes_, 0};
    }
    if (set_.index == Hdf5Index::fixed_array) read_fixed_array();
    return std::move(chunks_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { fail_hdf5(path_, what); }

  /// `level` is the level of the node above; -1 at the root.
  void visit(uint64_t address, int level) {
    const uint64_t head_bytes = 8 + 2 * file_.address_bytes, key_bytes = 8 + 8 * (set_.dims.size() + 1);
    const std::vector<uint8_t> head = file_.read(address, head_bytes);
    Hdf5Cursor start(head, path_);
    start.expect("TREE");
    if (start.u8() != 1) fail("chunks have a tree of another type");
    const int own = start.u8();
    if (level >= 0 && own != level - 1) fail("the levels of a tree do not descend");
    const uint64_t entries = start.number(2), body_bytes = entries * (key_bytes + file_.address_bytes);
    used_ += body_bytes;
    if (used_ > static_cast<uint64_t>(file_.file.bytes())) fail("the nodes of a tree overlap");
    const std::vector<uint8_t> body = file_.read(address + head_bytes, body_bytes);
    Hdf5Cursor from(body, path_);
    for (uint64_t e = 0; e < entries; ++e) {
      Hdf5Chunk chunk;
      chunk.bytes = from.u32();
      chunk.mask = from.u32();
      const uint64_t number = number_at(from);
      from.skip(8);
      chunk.address = file_.address(from);
      if (own > 0)
        visit(chunk.address, own);
      else if (number < all_)
        chunks_[number] = chunk;
    }
  }

  /// The number of the chunk with these offsets; all_ if it is outside of the dataset, which has shrunk.
  uint64_t number_at(Hdf5Cursor& from) const {
    uint64_t number = 0;
    bool is_inside = true;
    for (size_t d = 0; d < grid_.size(); ++d) {
      const uint64_t place = from.number(8) / set_.chunk[d];
      is_inside = is_inside && place < grid_[d];
      number = number * grid_[d] + place;
    }
    return is_inside ? number : all_;
  }

  void read_fixed_array() {
    const std::vector<uint8_t> head = file_.read(set_.address, 8 + file_.length_bytes + file_.address_bytes);
    Hdf5Cursor start(head, path_);
    start.expect("FAHD");
    start.skip(1);
    const bool is_filtered = start.u8() == 1;
    const size_t entry = start.u8();
    const uint8_t page_bits = start.u8();
    const uint64_t count = file_.length(start), data = file_.address(start);
    const size_t size_bytes = is_filtered ? entry - std::min(entry, file_.address_bytes + 4) : 0;
    if (count != all_ || page_bits > 32 || entry != file_.address_bytes + (is_filtered ? size_bytes + 4 : 0) ||
        size_bytes > 8)
      fail("an array of chunks is invalid");
    if (data == kNoHdf5Address) return;
    if (count > static_cast<uint64_t>(file_.file.bytes()) / entry) fail("an array of chunks exceeds the file");
    const uint64_t page = uint64_t{1} << page_bits, pages = count > page ? (count + page - 1) / page : 0;
    const uint64_t bitmap = (pages + 7) / 8, block = 6 + file_.address_bytes;
    const std::vector<uint8_t> used = file_.read(data, block + bitmap);
    uint64_t at = data + block + bitmap + (pages > 0 ? 4 : 0);  // after a checksum
    for (uint64_t first = 0; first < count; first += page) {
      const uint64_t entries = std::min(page, count - first), number = first / page;
      // Bits are counted from the highest one.
      const bool is_used = pages == 0 || (used[block + number / 8] >> (7 - number % 8) & 1) != 0;
      if (is_used) read_entries(at, first, entries, is_filtered, size_bytes, entry);
      at += entries * entry + 4;
    }
  }

  void read_entries(uint64_t at, uint64_t first, uint64_t count, bool is_filtered, size_t size_bytes, size_t entry) {
    const std::vector<uint8_t> bytes = file_.read(at, count * entry);
    Hdf5Cursor from(bytes, path_);
    for (uint64_t c = first; c < first + count; ++c) {
      Hdf5Chunk chunk{file_.address(from), bytes_, 0};
      if (is_filtered) {
        chunk.bytes = from.number(size_bytes);
        chunk.mask = from.u32();
      }
      if (chunk.address != kNoHdf5Address) chunks_[c] = chunk;
    }
  }

  const Hdf5Bytes& file_;
  const Hdf5Dataset& set_;
  std::string path_;
  std::vector<uint64_t> grid_;
  uint64_t bytes_, all_ = 1, used_ = 0;
  Hdf5Chunks chunks_;
};

/// Undoes the compression of liblzf: literals, and references to earlier bytes.
std::vector<uint8_t> undo_lzf(const std::vector<uint8_t>& packed, uint64_t bytes, const std::string& path) {
  std::vector<uint8_t> out;
  constexpr uint64_t kMostFromByte = 100;
  out.reserve(std::min(bytes, kMostFromByte * packed.size()));
  Hdf5Cursor from(packed, path);
  while (from.left() > 0) {
    const uint32_t control = from.u8();
    if (control < 32) {
      const auto literal = from.take(control + 1);
      out.insert(out.end(), literal.begin(), literal.end());
    } else {
      uint32_t length = control >> 5;
      if (length == 7) length += from.u8();
      const uint32_t back = ((control & 31) << 8 | from.u8()) + 1;
      if (back > out.size()) fail_hdf5(path, "the lzf data of a chunk");
      for (uint32_t i = 0; i < length + 2; ++i) out.push_back(out[out.size() - back]);
    }
    if (out.size() > bytes) break;
  }
  if (out.size() != bytes) fail_hdf5(path, "the lzf data of a chunk have another size");
  return out;
}

/// Undoes the shuffle filter, which stores bytes of equal significance together: all first bytes, all second bytes, …,
/// and the rest.
std::vector<uint8_t> undo_shuffle(const std::vector<uint8_t>& from, uint64_t width) {
  if (width < 2 || from.size() < width) return from;
  std::vector<uint8_t> out = from;
  const uint64_t count = from.size() / width;
  for (uint64_t b = 0; b < width; ++b)
    for (uint64_t i = 0; i < count; ++i) out[i * width + b] = from[b * count + i];
  return out;
}

uint32_t fletcher32(std::span<const uint8_t> bytes) {
  uint32_t low = 0, high = 0;
  for (size_t at = 0; at + 1 < bytes.size(); at += 2) {
    low = (low + (uint32_t{bytes[at]} << 8 | bytes[at + 1])) % 65535;
    high = (high + low) % 65535;
  }
  if (bytes.size() % 2 == 1) {
    low = (low + (uint32_t{bytes.back()} << 8)) % 65535;
    high = (high + low) % 65535;
  }
  return high << 16 | low;
}

void check_fletcher32(std::vector<uint8_t>& bytes, const std::string& path) {
  if (bytes.size() < 4) fail_hdf5(path, "a chunk has no checksum");
  const size_t count = bytes.size() - 4;
  uint32_t stored = 0;
  std::memcpy(&stored, bytes.data() + count, sizeof stored);
  const uint32_t sum = fletcher32(std::span(bytes).first(count));
  // The two sums are computed modulo 65,535, and a sum of 0 may also be written as 65,535. Old versions of the library
  // swapped the bytes.
  const auto is_same = [&](uint32_t other) {
    return sum >> 16 == (other >> 16) % 65535 && (sum & 0xFFFF) == (other & 0xFFFF) % 65535;
  };
  if (!is_same(stored) && !is_same((stored & 0x00FF00FF) << 8 | (stored >> 8 & 0x00FF00FF)))
    fail_hdf5(path, "the checksum of a chunk is wrong");
  bytes.resize(count);
}

}  // namespace

std::vector<uint64_t> hdf5_chunk_grid(const Hdf5Dataset& set) {
  std::vector<uint64_t> grid;
  for (size_t d = 0; d < set.chunk.size(); ++d)
    grid.push_back((static_cast<uint64_t>(set.dims[d]) + set.chunk[d] - 1) / set.chunk[d]);
  return grid;
}

uint64_t hdf5_chunk_bytes(const Hdf5Dataset& set) {
  auto bytes = static_cast<int64_t>(set.type.bytes);
  for (const uint64_t dim : set.chunk) bytes = capped_product(bytes, static_cast<int64_t>(dim));
  return static_cast<uint64_t>(bytes);
}

Hdf5Chunks read_hdf5_chunks(const Hdf5Bytes& file, const Hdf5Dataset& set) {
  return ChunkIndexReader(file, set).chunks();
}

std::vector<uint8_t> read_hdf5_chunk(const Hdf5Bytes& file, const Hdf5Dataset& set, const Hdf5Chunk& chunk) {
  const std::string& path = file.file.path();
  const uint64_t bytes = hdf5_chunk_bytes(set);
  std::vector<uint8_t> data = file.read(chunk.address, chunk.bytes);
  for (size_t f = set.filters.size(); f-- > 0;) {
    if (f < 32 && (chunk.mask >> f & 1) != 0) continue;
    const Hdf5Filter& filter = set.filters[f];
    // Filters that were applied before may have added a checksum.
    const uint64_t sums =
        static_cast<uint64_t>(std::count_if(set.filters.begin(), set.filters.begin() + static_cast<int64_t>(f),
                                            [](const Hdf5Filter& before) { return before.id == kFletcher32; }));
    const auto expected = static_cast<int64_t>(bytes + 4 * sums);
    if (filter.id == kDeflate) data = inflated_gzip(data, expected, path);
    if (filter.id == kHdf5Zstd) data = inflated_zstd(data, expected, path);
    if (filter.id == kLzf) data = undo_lzf(data, static_cast<uint64_t>(expected), path);
    if (filter.id == kShuffle) data = undo_shuffle(data, filter.values.empty() ? set.type.bytes : filter.values[0]);
    if (filter.id == kFletcher32) check_fletcher32(data, path);
  }
  if (data.size() != bytes)
    fail_hdf5(path, fmt::format("a chunk of '{}' has {} bytes, expected {}", set.name, data.size(), bytes));
  return data;
}

std::string hdf5_filter_problem(const Hdf5Dataset& set) {
  if (!set.filters.empty() && !set.filters_edges) return "has chunks at its edges that are not filtered";
  for (const Hdf5Filter& filter : set.filters)
    if (filter.id != kDeflate && filter.id != kShuffle && filter.id != kFletcher32 && filter.id != kLzf &&
        filter.id != kHdf5Zstd)
      return fmt::format("uses the filter {}, which is not supported; write it with compression='gzip'", filter.id);
  return "";
}

}  // namespace trainctl
