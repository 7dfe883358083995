// Makes small checkpoints with known contents, cut into boxes at random.
#include "tests/train/checkpoint/sample.h"

#include <fmt/format.h>

#include <cstring>
#include <map>

#include "engine/base/text.h"
#include "engine/graph/bf16.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

int64_t place(const Shape& whole, const Box& box, int64_t element) {
  int64_t at = 0, stride = 1;
  for (size_t d = whole.size(); d-- > 0;) {
    at += (box.offset[d] + element % box.shape[d]) * stride;
    element /= box.shape[d];
    stride *= whole[d];
  }
  return at;
}

int value_at(const SampleTensor& tensor, int64_t index) {
  return static_cast<int>((static_cast<uint64_t>(index) * 7 + stable_hash(tensor.name + tensor.slot)) % 255) - 127;
}

int64_t between(int64_t least, int64_t most, std::mt19937& random) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

SampleTensor cut_at_random(std::string name, std::string slot, DType dtype, Shape shape, int files,
                           std::mt19937& random) {
  SampleTensor tensor{std::move(name), std::move(slot), dtype, shape, {}};
  tensor.boxes.resize(static_cast<size_t>(files));
  for (const Box& box : random_tiling(shape, static_cast<int>(between(1, 3 * files, random)), random))
    tensor.boxes[static_cast<size_t>(between(0, files - 1, random))].push_back(box);
  return tensor;
}

}  // namespace

std::vector<uint8_t> sample_bytes(const SampleTensor& tensor, const Box& box, DType dtype) {
  const int64_t elements = num_elements(box.shape), width = byte_size(dtype);
  std::vector<uint8_t> bytes(static_cast<size_t>(elements * width));
  for (int64_t i = 0; i < elements; ++i) {
    const int value = value_at(tensor, place(tensor.shape, box, i));
    const auto real = static_cast<float>(value);
    const uint16_t half = to_bf16(real);
    const void* from = dtype == DType::i32 ? static_cast<const void*>(&value) : dtype == DType::f32 ? &real : nullptr;
    std::memcpy(bytes.data() + i * width, from == nullptr ? &half : from, static_cast<size_t>(width));
  }
  return bytes;
}

std::vector<Box> random_tiling(const Shape& shape, int pieces, std::mt19937& random) {
  std::vector<Box> boxes = {whole_box(shape)};
  for (int tries = 0; tries < 4 * pieces && static_cast<int>(boxes.size()) < pieces && !shape.empty(); ++tries) {
    Box& box = boxes[static_cast<size_t>(between(0, static_cast<int64_t>(boxes.size()) - 1, random))];
    const auto d = static_cast<size_t>(between(0, static_cast<int64_t>(shape.size()) - 1, random));
    if (box.shape[d] < 2) continue;
    const int64_t first = between(1, box.shape[d] - 1, random);
    Box rest = box;
    rest.offset[d] += first;
    rest.shape[d] -= first;
    box.shape[d] = first;
    boxes.push_back(rest);
  }
  return boxes;
}

Box random_box(const Shape& shape, std::mt19937& random) {
  Box box = whole_box(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (between(0, 2, random) == 0) continue;  // whole dims are common
    box.offset[d] = between(0, shape[d] - 1, random);
    box.shape[d] = between(1, shape[d] - box.offset[d], random);
  }
  return box;
}

std::vector<SampleTensor> sample_tensors(int files, std::mt19937& random) {
  return {cut_at_random("fc1.weight", "weight", DType::f32, {24, 36}, files, random),
          cut_at_random("fc1.weight", "exp_avg", DType::bf16, {24, 36}, files, random),
          cut_at_random("conv.weight", "weight", DType::f32, {6, 5, 3, 4}, files, random),
          cut_at_random("bn.mean", "state", DType::f32, {33}, files, random),
          cut_at_random("table", "weight", DType::i32, {7, 9, 5}, files, random),
          cut_at_random("scale", "weight", DType::f32, {}, files, random)};
}

std::vector<SampleTensor> two_small_tensors() {
  return {{"fc.weight", "weight", DType::f32, {4, 3}, {{{{0, 0}, {2, 3}}}, {{{2, 0}, {2, 3}}}}},
          {"fc.bias", "weight", DType::bf16, {4}, {{{{0}, {4}}}, {}}}};
}

Manifest write_sample_files(const std::string& folder, const std::vector<SampleTensor>& tensors, int64_t step,
                            int attempt, Disk& disk) {
  Manifest manifest{.trainctl = "0.1.0",
                    .name = "sample",
                    .run = 1,
                    .attempt = attempt,
                    .step = step,
                    .epoch = 1,
                    .epoch_step = step,
                    .samples = 32 * step,
                    .seed = 1,
                    .written = "2026-11-23T12:00:00Z"};
  std::map<std::string, std::vector<SafetensorsEntry>> entries;
  std::map<std::string, std::pair<const SampleTensor*, Box>> pieces;
  for (const SampleTensor& tensor : tensors) {
    StoredTensor stored{tensor.name, tensor.slot, tensor.dtype, tensor.shape, {}};
    for (size_t file = 0; file < tensor.boxes.size(); ++file)
      for (const Box& box : tensor.boxes[file]) {
        const std::string name = fmt::format("rank.{:04}.safetensors", file);
        const std::string key = piece_key(tensor.name, tensor.slot, tensor.shape, box);
        stored.pieces.push_back({name, box});
        entries[name].push_back({.name = key, .type = stored_type(tensor.dtype), .shape = box.shape});
        pieces.emplace(key, std::pair(&tensor, box));
      }
    manifest.tensors.push_back(std::move(stored));
  }
  for (auto& [name, of_file] : entries) {
    SafetensorsWriter writer(folder + "/" + name, of_file, {}, disk);
    for (const SafetensorsEntry& entry : writer.header().entries) {
      const auto& [tensor, box] = pieces.at(entry.name);
      writer.write(writer.index_of(entry.name), 0, sample_bytes(*tensor, box, tensor->dtype));
    }
    const FileDigest digest = writer.finish();
    manifest.files.push_back({name, digest.bytes, digest.xxh128});
  }
  return manifest;
}

std::string save_sample(CheckpointDirectory& directory, const std::vector<SampleTensor>& tensors, int64_t step,
                        int attempt, Disk& disk) {
  const std::string folder = directory.begin(step, attempt);
  return directory.commit(write_sample_files(folder, tensors, step, attempt, disk), "name: sample\n");
}

}  // namespace trainctl
