// Reads and writes the data of safetensors files; the header's text is in safetensors_header.cpp.
#include "engine/train/files/safetensors.h"

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"
#include "engine/train/files/digest.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kReadBlockBytes = int64_t{1} << 20;

/// The bytes of the header, as far as its length is plausible; the parser says what is wrong with the rest.
std::vector<uint8_t> read_start(const InputFile& file) {
  std::vector<uint8_t> start(static_cast<size_t>(std::min(kLengthBytes, file.bytes())));
  file.read(0, start);
  uint64_t length = 0;
  if (start.size() == kLengthBytes) std::memcpy(&length, start.data(), sizeof length);
  if (length > static_cast<uint64_t>(kMostHeaderBytes)) return start;
  if (static_cast<int64_t>(length) > file.bytes() - kLengthBytes) return start;
  start.resize(kLengthBytes + length);
  file.read(kLengthBytes, std::span(start).subspan(kLengthBytes));
  return start;
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::string path)
    : file_(std::make_unique<InputFile>(std::move(path))),
      header_(parse_safetensors_header(read_start(*file_), file_->bytes(), file_->path())) {
  for (size_t i = 0; i < header_.entries.size(); ++i) index_.emplace(header_.entries[i].name, i);
}

SafetensorsFile::~SafetensorsFile() = default;

const std::string& SafetensorsFile::path() const { return file_->path(); }

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.entries[found->second];
}

void SafetensorsFile::read(const SafetensorsEntry& entry, int64_t at, std::span<uint8_t> to) const {
  check(at >= 0 && static_cast<int64_t>(to.size()) <= entry.bytes() - at, "a range of a tensor is within it");
  file_->read(header_.data_at + entry.begin + at, to);
}

struct SafetensorsWriter::State {
  SafetensorsHeader header;
  std::unordered_map<std::string, size_t> index;
  DiskFile file;
  Digest digest;
  int64_t digested = 0;  ///< bytes of the file, from its start
  int64_t written = 0;   ///< bytes of the file

  void write(int64_t at, std::span<const uint8_t> bytes) {
    file.write(at, bytes);
    written += static_cast<int64_t>(bytes.size());
    if (at != digested) return;
    digest.add(bytes);
    digested += static_cast<int64_t>(bytes.size());
  }

  void digest_rest() {
    const InputFile back(file.path());
    std::vector<uint8_t> block(static_cast<size_t>(std::min(kReadBlockBytes, written - digested)));
    for (int64_t size; digested < written; digested += size) {
      size = std::min(kReadBlockBytes, written - digested);
      back.read(digested, std::span(block).first(static_cast<size_t>(size)));
      digest.add(std::span(block).first(static_cast<size_t>(size)));
    }
  }
};

SafetensorsWriter::SafetensorsWriter(std::string path, std::vector<SafetensorsEntry> entries,
                                     std::map<std::string, std::string> metadata, Disk& disk)
    : state_(new State{.header = lay_out(std::move(entries), std::move(metadata)),
                       .index = {},
                       .file = DiskFile(std::move(path), disk),
                       .digest = {}}) {
  for (size_t i = 0; i < state_->header.entries.size(); ++i) state_->index.emplace(state_->header.entries[i].name, i);
  const std::string head = safetensors_head(state_->header);
  state_->write(0, {reinterpret_cast<const uint8_t*>(head.data()), head.size()});
}

SafetensorsWriter::~SafetensorsWriter() = default;

const SafetensorsHeader& SafetensorsWriter::header() const { return state_->header; }

size_t SafetensorsWriter::index_of(const std::string& name) const {
  const auto found = state_->index.find(name);
  check(found != state_->index.end(), "the file has a tensor of this name");
  return found->second;
}

void SafetensorsWriter::write(size_t entry, int64_t at, std::span<const uint8_t> bytes) {
  const SafetensorsEntry& written = state_->header.entries.at(entry);
  check(at >= 0 && static_cast<int64_t>(bytes.size()) <= written.bytes() - at, "a range of a tensor is within it");
  state_->write(state_->header.data_at + written.begin + at, bytes);
}

FileDigest SafetensorsWriter::finish() {
  check(state_->written == state_->header.data_at + state_->header.data_bytes(),
        "every byte of a file is written once");
  if (state_->digested < state_->written) state_->digest_rest();
  state_->file.sync_and_close();
  return {state_->written, state_->digest.digits()};
}

}  // namespace trainctl
