// From the bytes of an HDF5 file, as HDF5 1.6 to 1.14 write it, to the list of its datasets: name, type, dims, and
// where and how their values are stored. Chunks and values are read elsewhere (hdf5_chunks.h).
//
//   superblock -> root group -> its links -> groups and datasets -> …
//
//   group     messages link, one per link; or, in old files, symbol_table: a tree (TREE) of nodes (SNOD) with links,
//             whose names are in a heap (HEAP)
//   dataset   messages dataspace (dims), datatype, layout (where the values are), filters, fill
//
// Every object has a header of messages (hdf5_messages.h). Each object is visited once, whatever the links are, and a
// dataset that cannot be read has a `problem` instead of an error, because a job may not need it.
#include "engine/train/data/tables/hdf5_objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/train/data/tables/hdf5_messages.h"

namespace trainctl {
namespace {

constexpr int kMostHdf5Depth = 32;

class ObjectReader {
 public:
  explicit ObjectReader(Hdf5Bytes& file) : file_(file), headers_(file), path_(file.file.path()) {}

  std::vector<Hdf5Dataset> datasets() {
    const uint64_t root = read_superblock();
    visit(root, "", 0);
    return std::move(found_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { fail_hdf5(path_, what); }
  /// Returns the address of the root group.
  uint64_t read_superblock() {
    constexpr std::string_view kSignature("\x89HDF\r\n\x1a\n", 8);
    const auto size = static_cast<uint64_t>(file_.file.bytes());
    for (uint64_t at = 0; at + kSignature.size() <= size; at = at == 0 ? 512 : 2 * at) {
      const std::vector<uint8_t> bytes = file_.read_up_to(at, 128);
      if (!std::equal(kSignature.begin(), kSignature.end(), bytes.begin(),
                      [](char a, uint8_t b) { return static_cast<uint8_t>(a) == b; }))
        continue;
      Hdf5Cursor from(bytes, path_);
      from.skip(kSignature.size());
      file_.base = at;
      return read_superblock_at(from);
    }
    throw EnvError(path_ + ": is not an HDF5 file");
  }

  uint64_t read_superblock_at(Hdf5Cursor& from) {
    const uint8_t version = from.u8();
    if (version > 3) refuse_hdf5(path_, fmt::format("has version {} of the superblock", version));
    if (version < 2) from.skip(4);
    file_.address_bytes = from.u8();
    file_.length_bytes = from.u8();
    for (const size_t width : {file_.address_bytes, file_.length_bytes})
      if (width != 2 && width != 4 && width != 8) fail(fmt::format("it has addresses of {} bytes", width));
    from.skip(version >= 2 ? 1 : version == 1 ? 13 : 9);
    from.skip(2 * file_.address_bytes);
    const uint64_t end = from.number(file_.address_bytes);
    if (const auto bytes = static_cast<uint64_t>(file_.file.bytes()); end > bytes)
      throw EnvError(
          fmt::format("{}: is truncated: it has {} bytes, but should have {}; get the file again", path_, bytes, end));
    if (version < 2) from.skip(2 * file_.address_bytes);
    return file_.address(from);
  }

  // Groups

  void visit(uint64_t address, const std::string& name, int depth) {
    if (depth > kMostHdf5Depth) fail("groups are nested too deeply");
    if (!visited_.insert(address).second) return;  // a hard link to an object that has another name too
    const std::vector<Hdf5Message> messages = headers_.read(address);
    if (const Hdf5Message* layout = headers_.find(messages, Hdf5MessageType::layout))
      return add_dataset(messages, *layout, name);
    if (const Hdf5Message* table = headers_.find(messages, Hdf5MessageType::symbol_table)) {
      Hdf5Cursor from(table->bytes, path_);
      const uint64_t tree = file_.address(from), heap = file_.address(from);
      return visit_symbols(tree, read_heap(heap), name, depth, -1);
    }
    if (const Hdf5Message* info = headers_.find(messages, Hdf5MessageType::link_info)) {
      Hdf5Cursor from(info->bytes, path_);
      from.skip(1);
      from.skip((from.u8() & 1) != 0 ? 8 : 0);
      if (file_.address(from) != kNoHdf5Address)
        refuse_hdf5(path_, fmt::format("the group '/{}' has its links in a heap", printable(shortened(name))));
    }
    for (const Hdf5Message& message : messages)
      if (message.type == Hdf5MessageType::link) visit_link(message, name, depth);
  }

  static std::string joined(const std::string& group, const std::string& name) {
    return group.empty() ? name : group + "/" + name;
  }

  void visit_link(const Hdf5Message& message, const std::string& group, int depth) {
    Hdf5Cursor from(message.bytes, path_);
    from.skip(1);
    const uint8_t flags = from.u8();
    const uint8_t kind = (flags & 8) != 0 ? from.u8() : 0;
    from.skip(((flags & 4) != 0 ? 8 : 0) + ((flags & 16) != 0 ? 1 : 0));
    const auto name = from.take(from.number(size_t{1} << (flags & 3)));
    if (kind != 0) return;  // a link to a name, or to another file
    visit(file_.address(from), joined(group, {name.begin(), name.end()}), depth + 1);
  }

  /// The names of a group, each with a zero byte at its end.
  std::string read_heap(uint64_t address) {
    const std::vector<uint8_t> head = file_.read(address, 8 + 2 * file_.length_bytes + file_.address_bytes);
    Hdf5Cursor from(head, path_);
    from.expect("HEAP");
    from.skip(4);
    const uint64_t bytes = file_.length(from);
    from.skip(file_.length_bytes);
    headers_.count(bytes);
    const std::vector<uint8_t> names = file_.read(file_.address(from), bytes);
    return {names.begin(), names.end()};
  }

  /// `level` of the node above; -1: this is the root.
  void visit_symbols(uint64_t address, const std::string& names, const std::string& group, int depth, int level) {
    const uint64_t head_bytes = 8 + 2 * file_.address_bytes;
    const std::vector<uint8_t> head = file_.read(address, head_bytes);
    Hdf5Cursor start(head, path_);
    start.expect("TREE");
    if (start.u8() != 0) fail("a group has a tree of another type");
    const int own = start.u8();
    if (level >= 0 && own != level - 1) fail("the levels of a tree do not descend");
    const uint64_t entries = start.number(2), body_bytes = entries * (file_.length_bytes + file_.address_bytes);
    headers_.count(body_bytes);
    const std::vector<uint8_t> body = file_.read(address + head_bytes, body_bytes);
    Hdf5Cursor from(body, path_);
    for (uint64_t e = 0; e < entries; ++e) {
      from.skip(file_.length_bytes);
      const uint64_t child = file_.address(from);
      if (own > 0)
        visit_symbols(child, names, group, depth, own);
      else
        visit_symbol_node(child, names, group, depth);
    }
  }

  void visit_symbol_node(uint64_t address, const std::string& names, const std::string& group, int depth) {
    const std::vector<uint8_t> head = file_.read(address, 8);
    Hdf5Cursor start(head, path_);
    start.expect("SNOD");
    start.skip(2);
    const uint64_t symbols = start.number(2), body_bytes = symbols * (2 * file_.address_bytes + 24);
    headers_.count(body_bytes);
    const std::vector<uint8_t> body = file_.read(address + 8, body_bytes);
    Hdf5Cursor from(body, path_);
    for (uint64_t s = 0; s < symbols; ++s) {
      const uint64_t name_at = from.number(file_.address_bytes);
      const uint64_t header = file_.address(from);
      const uint32_t kind = from.u32();
      from.skip(20);
      if (name_at >= names.size()) fail("a name is outside of its heap");
      constexpr uint32_t kSymbolicLink = 2;
      if (kind == kSymbolicLink || header == kNoHdf5Address) continue;
      visit(header, joined(group, names.substr(name_at, names.find('\0', name_at) - name_at)), depth + 1);
    }
  }

  // Datasets

  void add_dataset(const std::vector<Hdf5Message>& messages, const Hdf5Message& layout, const std::string& name) {
    Hdf5Dataset set;
    set.name = name;
    const Hdf5Message *space = headers_.find(messages, Hdf5MessageType::dataspace),
                      *type = headers_.find(messages, Hdf5MessageType::datatype);
    if (space == nullptr || type == nullptr) fail("a dataset has no type, or no dims");
    Hdf5Cursor dims(space->bytes, path_);
    read_dims(dims, set.dims);
    if (set.dims.empty()) return;
    Hdf5Cursor type_at(type->bytes, path_);
    set.type = read_hdf5_type(type_at, file_);
    set.problem = set.type.problem;
    if (const Hdf5Message* filters = headers_.find(messages, Hdf5MessageType::filters)) read_filters(*filters, set);
    read_fill(messages, set);
    if (headers_.find(messages, Hdf5MessageType::external_files) != nullptr)
      set.problem = "has its data in other files";
    else
      read_layout(layout, set);
    found_.push_back(std::move(set));
  }

  void read_dims(Hdf5Cursor& from, Shape& dims) {
    const uint8_t version = from.u8(), count = from.u8();
    from.skip(version == 1 ? 6 : 2);
    constexpr uint8_t kMostHdf5Dims = 32;
    if (version < 1 || version > 2 || count > kMostHdf5Dims) fail("the dims of a dataset are invalid");
    constexpr uint64_t kMostDim = uint64_t{1} << 48;
    for (uint8_t d = 0; d < count; ++d) {
      const uint64_t dim = file_.length(from);
      if (dim > kMostDim) fail("a dim of a dataset is too large");
      dims.push_back(static_cast<int64_t>(dim));
    }
  }

  void read_fill(const std::vector<Hdf5Message>& messages, Hdf5Dataset& set) {
    const Hdf5Message* fill = headers_.find(messages, Hdf5MessageType::fill);
    if (fill == nullptr) return;
    Hdf5Cursor from(fill->bytes, path_);
    const uint8_t version = from.u8();
    if (version < 3) from.skip(2);
    const uint8_t defined = from.u8();
    if (version < 3 ? version == 2 && defined == 0 : (defined & 0x20) == 0) return;
    const uint64_t bytes = from.left() < 4 ? 0 : from.u32();
    const auto value = from.take(bytes > from.left() ? 0 : bytes);
    if (value.size() == set.type.bytes) set.fill.assign(value.begin(), value.end());
  }

  void read_filters(const Hdf5Message& message, Hdf5Dataset& set) {
    Hdf5Cursor from(message.bytes, path_);
    const uint8_t version = from.u8(), count = from.u8();
    if (version == 1) from.skip(6);
    constexpr uint16_t kFirstWithName = 256;
    for (uint8_t f = 0; f < count; ++f) {
      Hdf5Filter filter{static_cast<uint16_t>(from.number(2)), {}};
      const size_t name = version == 1 || filter.id >= kFirstWithName ? from.number(2) : 0;
      from.skip(2);
      const uint64_t values = from.number(2);
      from.skip(version == 1 ? (name + 7) / 8 * 8 : name);
      for (uint64_t v = 0; v < values; ++v) filter.values.push_back(from.u32());
      if (version == 1 && values % 2 == 1) from.skip(4);
      set.filters.push_back(std::move(filter));
    }
  }

  void read_layout(const Hdf5Message& message, Hdf5Dataset& set) {
    Hdf5Cursor from(message.bytes, path_);
    const uint8_t version = from.u8();
    if (version < 3 || version > 5) {  // 5 has wider sizes of chunks, which their index states
      set.problem = fmt::format("has version {} of the layout; run h5repack on the file", version);
      return;
    }
    const uint8_t kind = from.u8();
    if (kind == 0) {
      const auto data = from.take(from.number(2));
      set.storage = Hdf5Storage::compact;
      set.compact.assign(data.begin(), data.end());
    } else if (kind == 1) {
      set.storage = Hdf5Storage::contiguous;
      set.address = file_.address(from);
      set.bytes = file_.length(from);
    } else if (kind == 2) {
      set.storage = Hdf5Storage::chunked;
      version == 3 ? read_chunks(from, set) : read_new_chunks(from, set);
    } else {
      set.problem = "is a virtual dataset, whose data are in other files";
    }
  }

  void read_chunk_dims(Hdf5Cursor& from, uint8_t count, size_t width, Hdf5Dataset& set) {
    if (count != set.dims.size() + 1) fail("the chunks of a dataset do not have its number of dims");
    for (uint8_t d = 0; d + 1 < count; ++d) {
      set.chunk.push_back(from.number(width));
      if (set.chunk.back() == 0 || set.chunk.back() > (uint64_t{1} << 40)) fail("a dim of a chunk is invalid");
    }
    from.skip(width);  // the size of a value, which the type has too
  }

  void read_chunks(Hdf5Cursor& from, Hdf5Dataset& set) {
    const uint8_t count = from.u8();
    set.address = file_.address(from);
    read_chunk_dims(from, count, 4, set);
  }

  void read_new_chunks(Hdf5Cursor& from, Hdf5Dataset& set) {
    const uint8_t flags = from.u8(), count = from.u8(), width = from.u8();
    read_chunk_dims(from, count, width, set);
    set.filters_edges = (flags & 1) == 0;
    const uint8_t kind = from.u8();
    constexpr const char* kLatest = "is extendable and was written with libver='latest'; run h5repack on the file";
    if (kind == 1) {
      set.index = Hdf5Index::single;
      if ((flags & 2) != 0) {
        set.single_bytes = file_.length(from);
        set.single_mask = from.u32();
      }
    } else if (kind == 2) {
      set.index = Hdf5Index::implicit;
    } else if (kind == 3) {
      set.index = Hdf5Index::fixed_array;
      from.skip(1);
    } else {
      set.problem = kLatest;
      return;
    }
    set.address = file_.address(from);
  }

  Hdf5Bytes& file_;
  Hdf5Headers headers_;
  std::string path_;
  std::set<uint64_t> visited_;
  std::vector<Hdf5Dataset> found_;
};

}  // namespace

std::vector<Hdf5Dataset> read_hdf5_datasets(Hdf5Bytes& file) { return ObjectReader(file).datasets(); }

}  // namespace trainctl
