// Reads parts of a checkpoint's tensors, however they were cut when they were written.
#include "engine/train/checkpoint/piece_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/graph/half.h"
#include "engine/train/checkpoint/box_runs.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box common = a;
  for (size_t d = 0; d < a.shape.size(); ++d) {
    const int64_t first = std::max(a.offset[d], b.offset[d]);
    const int64_t last = std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]);
    if (first >= last) return {};
    common.offset[d] = first;
    common.shape[d] = last - first;
  }
  return common;
}

int64_t place_in(const Box& box, const Shape& place) {
  int64_t before = 0;
  for (size_t d = 0; d < place.size(); ++d) before = before * box.shape[d] + place[d] - box.offset[d];
  return before;
}

namespace {

constexpr int64_t kBlockBytes = int64_t{4} << 20;
constexpr int64_t kUsefulPerGap = 16;  ///< A gap between two runs is read over if at least this many bytes are wanted
                                       ///< for each of its bytes.
constexpr size_t kMostOpenFiles = 256;

void convert_values(DType from, const uint8_t* values, DType to, uint8_t* out, int64_t count) {
  if (from == to) {
    std::memcpy(out, values, static_cast<size_t>(count * byte_size(to)));
    return;
  }
  check(is_float(from) && is_float(to), "only floats are converted");
  for (int64_t i = 0; i < count; ++i) {  // Neither side is aligned.
    float value = 0;
    uint16_t bits = 0;
    if (from == DType::f32) {
      std::memcpy(&value, values + i * 4, sizeof value);
    } else {
      std::memcpy(&bits, values + i * 2, sizeof bits);
      halves_to_floats(from, &bits, 1, &value);
    }
    if (to == DType::f32) {
      std::memcpy(out + i * 4, &value, sizeof value);
    } else {
      floats_to_halves(to, &value, 1, &bits);
      std::memcpy(out + i * 2, &bits, sizeof bits);
    }
  }
}

/// Collects the runs of one entry in the order of its file. Each run is read separately, or together with the runs that
/// follow it closely.
class RunReader {
 public:
  RunReader(const SafetensorsFile& file, const SafetensorsEntry& entry, DType from, DType to, uint8_t* out,
            std::vector<uint8_t>& scratch)
      : file_(file), entry_(entry), from_(from), to_(to), out_(out), scratch_(scratch) {}

  void add(int64_t from, int64_t to, int64_t elements) {
    const int64_t most = kBlockBytes / byte_size(from_);
    for (; elements > 0 && from_ != to_ && elements > most; from += most, to += most, elements -= most)
      add_block(from, to, most);
    add_block(from, to, elements);
  }

  void flush() {
    if (runs_.empty()) return;
    const int64_t width = byte_size(from_), begin = runs_.front().from;
    const int64_t bytes = (runs_.back().from + runs_.back().elements - begin) * width;
    bytes_read_ += bytes;
    if (runs_.size() == 1 && from_ == to_) {
      file_.read(entry_, begin * width, {out_ + runs_.front().to * width, static_cast<size_t>(bytes)});
    } else {
      scratch_.resize(std::max(scratch_.size(), static_cast<size_t>(bytes)));
      file_.read(entry_, begin * width, {scratch_.data(), static_cast<size_t>(bytes)});
      for (const Run& run : runs_)
        convert_values(from_, scratch_.data() + (run.from - begin) * width, to_, out_ + run.to * byte_size(to_),
                       run.elements);
    }
    runs_.clear();
    useful_ = gaps_ = 0;
  }

  int64_t bytes_read() const { return bytes_read_; }

 private:
  struct Run {
    int64_t from, to, elements;
  };

  void add_block(int64_t from, int64_t to, int64_t elements) {
    if (!runs_.empty()) {
      const int64_t gap = from - runs_.back().from - runs_.back().elements;
      const bool too_far = (gaps_ + gap) * kUsefulPerGap > useful_ + elements;
      const bool too_long = (useful_ + gaps_ + gap + elements) * byte_size(from_) > kBlockBytes;
      if (too_far || too_long)
        flush();
      else
        gaps_ += gap;
    }
    runs_.push_back({from, to, elements});
    useful_ += elements;
  }

  const SafetensorsFile& file_;
  const SafetensorsEntry& entry_;
  const DType from_, to_;
  uint8_t* const out_;
  std::vector<uint8_t>& scratch_;
  std::vector<Run> runs_;
  int64_t useful_ = 0, gaps_ = 0, bytes_read_ = 0;
};

}  // namespace

struct PieceReader::State {
  Manifest manifest;
  std::string directory;
  std::unordered_map<std::string, const StoredTensor*> tensors;  ///< by piece_key of the whole
  std::unordered_map<std::string, std::unique_ptr<SafetensorsFile>> files;
  std::vector<uint8_t> scratch;
  int64_t bytes_read = 0;

  const StoredTensor& tensor(std::string_view name, std::string_view slot) const {
    const auto found = tensors.find(fmt::format("{}:{}", name, slot));
    if (found == tensors.end())
      throw EnvError(fmt::format("{}: has no tensor {}, slot {}", directory, printable(name), printable(slot)));
    return *found->second;
  }

  const SafetensorsFile& file(const std::string& name) {
    auto found = files.find(name);
    if (found == files.end()) {
      if (files.size() >= kMostOpenFiles) files.clear();
      found = files.emplace(name, std::make_unique<SafetensorsFile>(directory + "/" + name)).first;
    }
    return *found->second;
  }

  const SafetensorsEntry& entry(const SafetensorsFile& file, const StoredTensor& tensor, const Box& piece) const {
    const std::string key = piece_key(tensor.name, tensor.slot, tensor.shape, piece);
    const SafetensorsEntry* found = file.find(key);
    const bool same = found != nullptr && found->type == stored_type(tensor.dtype) && found->shape == piece.shape;
    if (!same)
      throw EnvError(fmt::format("{}: has no tensor '{}' of type {} and shape {}, which {} lists", file.path(),
                                 printable(key), to_string(stored_type(tensor.dtype)), to_string(piece.shape),
                                 kManifestName));
    return *found;
  }
};

PieceReader::PieceReader(Manifest manifest, std::string directory)
    : state_(new State{.manifest = std::move(manifest), .directory = std::move(directory)}) {
  for (const StoredTensor& tensor : state_->manifest.tensors)
    state_->tensors.emplace(fmt::format("{}:{}", tensor.name, tensor.slot), &tensor);
}

PieceReader::~PieceReader() = default;

const Manifest& PieceReader::manifest() const { return state_->manifest; }
int64_t PieceReader::bytes_read() const { return state_->bytes_read; }

void PieceReader::read(std::string_view name, std::string_view slot, const Box& box, DType dtype, void* to) {
  const StoredTensor& tensor = state_->tensor(name, slot);
  check(box.offset.size() == tensor.shape.size() && box.shape.size() == tensor.shape.size(),
        "a box has its tensor's dims");
  for (size_t d = 0; d < tensor.shape.size(); ++d)
    check(box.offset[d] >= 0 && box.shape[d] >= 0 && box.offset[d] + box.shape[d] <= tensor.shape[d],
          "a box is in its tensor");
  if (dtype != tensor.dtype && (dtype == DType::i32 || tensor.dtype == DType::i32))
    throw EnvError(fmt::format("{}: tensor {}, slot {}: is {}, but {} is needed", state_->directory, printable(name),
                               printable(slot), to_string(tensor.dtype), to_string(dtype)));
  for (const StoredPiece& piece : tensor.pieces) {
    const std::optional<Box> common = intersection(piece.box, box);
    if (!common) continue;
    const SafetensorsFile& file = state_->file(piece.file);
    RunReader runs(file, state_->entry(file, tensor, piece.box), tensor.dtype, dtype, static_cast<uint8_t*>(to),
                   state_->scratch);
    for_each_run(*common, piece.box, box, [&](int64_t a, int64_t b, int64_t elements) { runs.add(a, b, elements); });
    runs.flush();
    state_->bytes_read += runs.bytes_read();
  }
}

}  // namespace trainctl
