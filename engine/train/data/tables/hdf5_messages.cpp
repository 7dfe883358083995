// Reads the messages of the headers of HDF5 objects, in both forms of headers.
#include "engine/train/data/tables/hdf5_messages.h"

#include <fmt/format.h>

#include "engine/base/error.h"

namespace trainctl {

[[noreturn]] void refuse_hdf5(const std::string& path, const std::string& what) {
  throw EnvError(path + ": " + what + "; write the file with h5py's default libver, or run h5repack on it");
}

void Hdf5Headers::count(uint64_t bytes) {
  used_ += bytes;
  if (used_ > static_cast<uint64_t>(file_.file.bytes())) fail("its structures overlap");
}

std::vector<Hdf5Message> Hdf5Headers::read(uint64_t address) {
  if (address == kNoHdf5Address) fail("an object has no header");
  const std::vector<uint8_t> start = file_.read_up_to(address, 64);
  Hdf5Cursor from(start, path_);
  std::vector<Hdf5Message> messages;
  Blocks blocks;  // continuations: place and size
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

void Hdf5Headers::read_block(Hdf5Cursor& from, bool is_new, bool has_order, size_t checksum,
                             std::vector<Hdf5Message>& messages, Blocks& blocks) {
  const size_t head = is_new ? (has_order ? 6 : 4) : 8;
  while (from.left() >= head + checksum) {
    Hdf5Message message;
    message.type = static_cast<Hdf5MessageType>(from.number(is_new ? 1 : 2));
    const size_t bytes = from.number(2);
    message.is_shared = (from.u8() & 2) != 0;
    from.skip(is_new ? (has_order ? 2 : 0) : 3);
    const auto body = from.take(bytes);
    if (message.type == Hdf5MessageType::continuation) {
      Hdf5Cursor next(body, path_);
      const uint64_t at = file_.address(next);
      blocks.emplace_back(at, file_.length(next));
      continue;
    }
    message.bytes.assign(body.begin(), body.end());
    messages.push_back(std::move(message));
  }
}

const Hdf5Message* Hdf5Headers::find(const std::vector<Hdf5Message>& messages, Hdf5MessageType type) {
  for (const Hdf5Message& message : messages)
    if (message.type == type) return message.is_shared ? shared(message) : &message;
  return nullptr;
}

const Hdf5Message* Hdf5Headers::shared(const Hdf5Message& message) {
  Hdf5Cursor from(message.bytes, path_);
  const uint8_t version = from.u8(), kind = from.u8();
  if (version == 1) from.skip(6);
  if (version > 3 || (version == 3 && kind != 2)) refuse_hdf5(path_, "has messages in a shared heap");
  const uint64_t address = file_.address(from);
  auto found = shared_.find(address);
  if (found == shared_.end()) found = shared_.emplace(address, read(address)).first;
  for (const Hdf5Message& other : found->second)
    if (other.type == message.type && !other.is_shared) return &other;
  fail("a shared message is missing");
}

}  // namespace trainctl
