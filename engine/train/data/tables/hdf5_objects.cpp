// The datasets of an HDF5 file: its superblock, groups and object headers, in the versions that HDF5 1.6 to 1.14 write.
#include "engine/train/data/tables/hdf5_objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/base/printable.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

constexpr int kMostHdf5Depth = 32;

enum MessageType : uint16_t {
  kDataspace = 1,
  kLinkInfo = 2,
  kDatatype = 3,
  kOldFill = 4,
  kFill = 5,
  kLink = 6,
  kExternalFiles = 7,
  kLayout = 8,
  kFilters = 11,
  kContinuation = 16,
  kSymbolTable = 17,
};

struct HeaderMessage {
  uint16_t type = 0;
  bool is_shared = false;
  std::vector<uint8_t> bytes;
};

class ObjectReader {
 public:
  explicit ObjectReader(Hdf5Bytes& file) : file_(file), path_(file.file.path()) {}

  std::vector<Hdf5Dataset> datasets() {
    const uint64_t root = read_superblock();
    visit(root, "", 0);
    return std::move(found_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { fail_hdf5(path_, what); }
  /// Throws the error for a sound file that has something that this reader does not support.
  [[noreturn]] void refuse(const std::string& what) const {
    throw EnvError(path_ + ": " + what + "; write the file with h5py's default libver, or run h5repack on it");
  }
  /// Bounds the work that a damaged file can cause: a structure of the file is read once.
  void count(uint64_t bytes) {
    used_ += bytes;
    if (used_ > static_cast<uint64_t>(file_.file.bytes())) fail("its structures overlap");
  }

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
    if (version > 3) refuse(fmt::format("has version {} of the superblock", version));
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

  // Object headers

  std::vector<HeaderMessage> read_messages(uint64_t address) {
    if (address == kNoHdf5Address) fail("an object has no header");
    const std::vector<uint8_t> start = file_.read_up_to(address, 64);
    Hdf5Cursor from(start, path_);
    std::vector<HeaderMessage> messages;
    std::vector<std::pair<uint64_t, uint64_t>> blocks;  // continuations: place and size
    const bool is_new = start[0] == 'O';
    if (!is_new) {
      if (const auto version = from.u8(); version != 1)
        fail(fmt::format("it has version {} of an object header", version));
      from.skip(7);
      blocks.emplace_back(address + 16, from.u32());
    }
    uint8_t flags = 0;
    if (is_new) {
      from.expect("OHDR");
      from.skip(1);
      flags = from.u8();
      from.skip(((flags & 0x20) != 0 ? 16 : 0) + ((flags & 0x10) != 0 ? 4 : 0));
      const uint64_t bytes = from.number(size_t{1} << (flags & 3));
      blocks.emplace_back(address + from.at(), bytes);
    }
    for (size_t b = 0; b < blocks.size(); ++b) {
      const auto [at, bytes] = blocks[b];
      count(bytes);
      const std::vector<uint8_t> block = file_.read(at, bytes);
      Hdf5Cursor part(block, path_);
      if (is_new && b > 0) part.expect("OCHK");
      read_block(part, is_new, (flags & 4) != 0, is_new && b > 0 ? 4 : 0, messages, blocks);
    }
    return messages;
  }

  void read_block(Hdf5Cursor& from, bool is_new, bool has_order, size_t checksum, std::vector<HeaderMessage>& messages,
                  std::vector<std::pair<uint64_t, uint64_t>>& blocks) {
    const size_t head = is_new ? (has_order ? 6 : 4) : 8;
    while (from.left() >= head + checksum) {
      HeaderMessage message;
      message.type = static_cast<uint16_t>(from.number(is_new ? 1 : 2));
      const size_t bytes = from.number(2);
      message.is_shared = (from.u8() & 2) != 0;
      from.skip(is_new ? (has_order ? 2 : 0) : 3);
      const auto body = from.take(bytes);
      if (message.type == kContinuation) {
        Hdf5Cursor next(body, path_);
        const uint64_t at = file_.address(next);
        blocks.emplace_back(at, file_.length(next));
        continue;
      }
      message.bytes.assign(body.begin(), body.end());
      messages.push_back(std::move(message));
    }
  }

  /// Finds the message of a type. If it is shared, returns the message of the object that it refers to. Null if there
  /// is none.
  const HeaderMessage* find(const std::vector<HeaderMessage>& messages, uint16_t type) {
    for (const HeaderMessage& message : messages)
      if (message.type == type) return message.is_shared ? shared(message) : &message;
    return nullptr;
  }

  const HeaderMessage* shared(const HeaderMessage& message) {
    Hdf5Cursor from(message.bytes, path_);
    const uint8_t version = from.u8(), kind = from.u8();
    if (version == 1) from.skip(6);
    if (version > 3 || (version == 3 && kind != 2)) refuse("has messages in a shared heap");
    const uint64_t address = file_.address(from);
    auto found = shared_.find(address);
    if (found == shared_.end()) found = shared_.emplace(address, read_messages(address)).first;
    for (const HeaderMessage& other : found->second)
      if (other.type == message.type && !other.is_shared) return &other;
    fail("a shared message is missing");
  }

  // Groups

  void visit(uint64_t address, const std::string& name, int depth) {
    if (depth > kMostHdf5Depth) fail("groups are nested too deeply");
    if (!visited_.insert(address).second) return;  // a hard link to an object that has another name too
    const std::vector<HeaderMessage> messages = read_messages(address);
    if (const HeaderMessage* layout = find(messages, kLayout)) return add_dataset(messages, *layout, name);
    if (const HeaderMessage* table = find(messages, kSymbolTable)) {
      Hdf5Cursor from(table->bytes, path_);
      const uint64_t tree = file_.address(from), heap = file_.address(from);
      return visit_symbols(tree, read_heap(heap), name, depth, -1);
    }
    if (const HeaderMessage* info = find(messages, kLinkInfo)) {
      Hdf5Cursor from(info->bytes, path_);
      from.skip(1);
      from.skip((from.u8() & 1) != 0 ? 8 : 0);
      if (file_.address(from) != kNoHdf5Address)
        refuse(fmt::format("the group '/{}' has its links in a heap", printable(shortened(name))));
    }
    for (const HeaderMessage& message : messages)
      if (message.type == kLink) visit_link(message, name, depth);
  }

  static std::string joined(const std::string& group, const std::string& name) {
    return group.empty() ? name : group + "/" + name;
  }

  void visit_link(const HeaderMessage& message, const std::string& group, int depth) {
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
    count(bytes);
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
    count(body_bytes);
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
    count(body_bytes);
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

  void add_dataset(const std::vector<HeaderMessage>& messages, const HeaderMessage& layout, const std::string& name) {
    Hdf5Dataset set;
    set.name = name;
    const HeaderMessage *space = find(messages, kDataspace), *type = find(messages, kDatatype);
    if (space == nullptr || type == nullptr) fail("a dataset has no type, or no dims");
    Hdf5Cursor dims(space->bytes, path_);
    read_dims(dims, set.dims);
    if (set.dims.empty()) return;
    Hdf5Cursor type_at(type->bytes, path_);
    set.type = read_hdf5_type(type_at, file_);
    set.problem = set.type.problem;
    if (const HeaderMessage* filters = find(messages, kFilters)) read_filters(*filters, set);
    read_fill(messages, set);
    if (find(messages, kExternalFiles) != nullptr)
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

  void read_fill(const std::vector<HeaderMessage>& messages, Hdf5Dataset& set) {
    const HeaderMessage* fill = find(messages, kFill);
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

  void read_filters(const HeaderMessage& message, Hdf5Dataset& set) {
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

  void read_layout(const HeaderMessage& message, Hdf5Dataset& set) {
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
  std::string path_;
  std::set<uint64_t> visited_;
  std::map<uint64_t, std::vector<HeaderMessage>> shared_;  ///< messages of objects that others refer to
  uint64_t used_ = 0;
  std::vector<Hdf5Dataset> found_;
};

}  // namespace

std::vector<Hdf5Dataset> read_hdf5_datasets(Hdf5Bytes& file) { return ObjectReader(file).datasets(); }

}  // namespace trainctl
