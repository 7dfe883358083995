// Exports a checkpoint's weights and running statistics to files that other tools read.
#include "engine/train/checkpoint/export_weights.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/graph/half.h"
#include "engine/ops/optimizer_def.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/spec/adapters.h"
#include "engine/train/checkpoint/blocks.h"
#include "engine/train/checkpoint/piece_reader.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

constexpr int64_t kExportedBlockElements = int64_t{1} << 20;

/// Either a part of one of our tensors that is a tensor of the file (or consecutive rows of a fused one), or a
/// constant.
struct ExportedPart {
  const StoredTensor* tensor = nullptr;  ///< null: a constant
  const MappedTensor* mapped = nullptr;
  size_t index = 0;  ///< index in mapped->theirs
  AxisOrder::Sizes sizes;
  int64_t value = 0;  ///< value of a constant
  Shape shape;
};

/// A tensor of a file.
struct ExportedTensor {
  SafetensorsEntry entry;
  std::vector<ExportedPart> parts;  ///< one after the other along dim 0
};

class Exporter {
 public:
  Exporter(const Manifest& manifest, const std::string& directory, const NameMap& map, const LayerNumbers& layers,
           const ExportOptions& options)
      : manifest_(manifest),
        stored_(manifest.with_base()),
        map_(map),
        layers_(layers),
        options_(options),
        reader_(manifest, directory) {
    check(!manifest.base || options.base != nullptr, "an export has the weights that the checkpoint leaves out");
    std::vector<std::string> names;
    for (const StoredTensor& tensor : stored_) names.push_back(tensor.name);
    result_.unused = map_.unused(names);
    for (const StoredTensor& tensor : stored_) {
      if (is_step_statistic(tensor.name)) continue;
      if (tensor.slot != kWeightSlot && tensor.slot != kStateSlot)
        ++result_.optimizer_tensors;
      else if (is_merged(tensor.name))
        ++result_.merged_tensors;
      else
        add(tensor);
    }
    if (!result_.left_out.empty() && !options.partial)
      throw EnvError(
          fmt::format("{}: the map has no pattern for {} of {} tensors:\n  {}\nadd patterns for them, or omit them "
                      "with --partial",
                      directory, result_.left_out.size(), result_.left_out.size() + mapped_.size(),
                      join(result_.left_out, "\n  ")));
    if (tensors_.empty()) throw EnvError(directory + ": the map has no pattern for any of its tensors");
    for (ExportedTensor& tensor : tensors_) complete(tensor);
  }

  /// Divides the tensors into files, so that none has more than shard_bytes unless a single tensor does.
  std::vector<std::vector<size_t>> shards() const {
    std::vector<std::vector<size_t>> shards = {{}};
    int64_t bytes = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const int64_t size = bytes_of(tensors_[i].entry);
      if (options_.shard_bytes > 0 && bytes + size > options_.shard_bytes && !shards.back().empty()) {
        shards.emplace_back();
        bytes = 0;
      }
      shards.back().push_back(i);
      bytes += size;
    }
    return shards;
  }

  void write(const std::vector<size_t>& shard, const std::string& path, Disk& disk) {
    std::vector<SafetensorsEntry> entries;
    for (const size_t i : shard) entries.push_back(tensors_[i].entry);
    // transformers opens only files that name a framework; the memory layout is that of PyTorch.
    SafetensorsWriter writer(path, entries,
                             {{"format", "pt"},
                              {"trainctl", manifest_.trainctl},
                              {"name", manifest_.name},
                              {"step", std::to_string(manifest_.step)}},
                             disk);
    for (const SafetensorsEntry& entry : writer.header().entries) {  // in the order of the file
      int64_t at = 0;
      for (const ExportedPart& part : tensors_[by_name_.at(entry.name)].parts) {
        write_part(writer, writer.index_of(entry.name), part, at);
        at += num_elements(part.shape) * bits_of(entry.type) / 8;
      }
    }
    result_.tensors += static_cast<int64_t>(entries.size());
    result_.bytes += writer.finish().bytes;
  }

  const std::string& name(size_t tensor) const { return tensors_[tensor].entry.name; }
  static int64_t bytes_of(const SafetensorsEntry& entry) { return num_elements(entry.shape) * bits_of(entry.type) / 8; }
  int64_t tensor_bytes() const {
    int64_t bytes = 0;
    for (const ExportedTensor& tensor : tensors_) bytes += bytes_of(tensor.entry);
    return bytes;
  }
  const ExportedWeights& result() const { return result_; }

 private:
  DType dtype_of(const StoredTensor& tensor) const { return tensor.dtype == DType::i32 ? DType::i32 : options_.dtype; }

  /// Returns whether the tensor belongs to an adapter, which is merged into the adapted weight in the exported files.
  bool is_merged(const std::string& name) const { return options_.adapter_factor != 0 && is_adapter_parameter(name); }

  /// Weights are exported as their average, where the checkpoint has one.
  std::string_view slot_of(const StoredTensor& tensor) const {
    const bool averaged =
        !options_.latest_weights && tensor.slot == kWeightSlot && manifest_.find(tensor.name, kAverageSlot) != nullptr;
    return averaged ? kAverageSlot : std::string_view(tensor.slot);
  }

  std::vector<float> read_whole(const StoredTensor& tensor) {
    std::vector<float> values(static_cast<size_t>(num_elements(tensor.shape)));
    reader_.read(tensor.name, slot_of(tensor), whole_box(tensor.shape), DType::f32, values.data());
    return values;
  }

  void read_stored(const StoredTensor& tensor, const Box& box, DType dtype, void* to) {
    if (tensor.pieces.empty())
      options_.base->read(tensor.name, box, dtype, to);
    else
      reader_.read(tensor.name, slot_of(tensor), box, dtype, to);
  }

  /// Reads a box of a tensor, and adds the product of its adapter if it has one.
  void read(const StoredTensor& tensor, const Box& box, DType dtype, void* to) {
    const StoredTensor* const a = of_adapter(tensor, kAdapterA);
    const StoredTensor* const b = of_adapter(tensor, kAdapterB);
    if (options_.adapter_factor == 0 || a == nullptr || b == nullptr) return read_stored(tensor, box, dtype, to);
    if (adapter_of_ != &tensor) read_adapter(tensor, *a, *b);
    std::vector<float> values(static_cast<size_t>(num_elements(box.shape)));
    read_stored(tensor, box, DType::f32, values.data());
    add_product(a->shape, box, values.data());
    for (size_t i = 0; !row_scales_.empty() && i < values.size(); ++i)
      values[i] *= row_scales_[static_cast<size_t>(box.offset[0]) + i / static_cast<size_t>(box.shape[1])];
    if (dtype == DType::f32)
      std::memcpy(to, values.data(), values.size() * sizeof(float));
    else
      floats_to_halves(dtype, values.data(), static_cast<int64_t>(values.size()), static_cast<uint16_t*>(to));
  }

  /// A tensor of the adapter of a weight; null if there is none.
  const StoredTensor* of_adapter(const StoredTensor& weight, std::string_view end) const {
    if (!is_weight(weight)) return nullptr;
    const std::string layer = weight.name.substr(0, weight.name.rfind('.'));
    const std::string own = options_.adapter.empty() ? "" : "." + options_.adapter;
    return manifest_.find(layer + own + std::string(end), kWeightSlot);
  }

  void read_adapter(const StoredTensor& tensor, const StoredTensor& a, const StoredTensor& b) {
    a_ = read_whole(a);
    b_ = read_whole(b);
    row_scales_.clear();
    adapter_of_ = &tensor;
    const StoredTensor* const magnitude = of_adapter(tensor, kAdapterMagnitude);
    if (magnitude == nullptr) return;
    row_scales_ = read_whole(*magnitude);
    std::vector<float> row(static_cast<size_t>(tensor.shape[1]));
    for (int64_t r = 0; r < tensor.shape[0]; ++r) {
      const Box box{{r, 0}, {1, tensor.shape[1]}};
      read_stored(tensor, box, DType::f32, row.data());
      add_product(a.shape, box, row.data());
      double sum = 0;
      for (const float v : row) sum += double{v} * v;
      float& scale = row_scales_[static_cast<size_t>(r)];
      scale = static_cast<float>(scale / std::sqrt(sum));
    }
  }

  static bool is_weight(const StoredTensor& tensor) {
    return tensor.slot == kWeightSlot && tensor.name.ends_with(".weight") && tensor.shape.size() == 2;
  }

  /// Adds the box's part of the adapter's product B A. `shape_of_a` is [rank, features]; the box is one of [units,
  /// features].
  void add_product(const Shape& shape_of_a, const Box& box, float* values) const {
    const int64_t rank = shape_of_a[0], features = shape_of_a[1];
    for (int64_t row = 0; row < box.shape[0]; ++row) {
      const float* const b = &b_[static_cast<size_t>((box.offset[0] + row) * rank)];
      for (int64_t column = 0; column < box.shape[1]; ++column) {
        double sum = 0;
        for (int64_t r = 0; r < rank; ++r)
          sum += static_cast<double>(b[r]) * a_[static_cast<size_t>(r * features + box.offset[1] + column)];
        values[row * box.shape[1] + column] += static_cast<float>(options_.adapter_factor * sum);
      }
    }
  }

  void add(const StoredTensor& tensor) {
    std::optional<MappedTensor> found = map_.of_ours(tensor.name, layers_);
    if (!found) {
      result_.left_out.push_back(tensor.name);
      return;
    }
    const MappedTensor& mapped = mapped_.emplace(tensor.name, std::move(*found)).first->second;
    AxisOrder::Sizes sizes;
    const Shape ordered = mapped.ordered_shape(tensor.shape);
    if (mapped.order) {
      try {
        sizes = mapped.order->sizes_from_ours(ordered, mapped.sizes);
      } catch (const OrderFault& fault) {
        throw SpecError(
            mapped.pos, "tensors." + mapped.pattern,
            fmt::format("the order does not fit {} {}: {}", tensor.name, to_string(ordered), fault.message));
      }
    }
    for (size_t i = 0; i < mapped.theirs.size(); ++i) {
      const Shape shape = mapped.order ? mapped.order->theirs_shape(sizes, i % mapped.ordered_parts()) : tensor.shape;
      add_part(mapped.theirs[i], stored_type(dtype_of(tensor)), {&tensor, &mapped, i, sizes, 0, shape}, mapped);
    }
    for (const MappedConstant& constant : map_.constants_with(tensor.name, manifest_.step))
      add_part(constant.name, constant.type, {.value = constant.value}, mapped);
  }

  void add_part(const std::string& name, StoredType type, ExportedPart part, const MappedTensor& mapped) {
    const std::optional<FusedPart> fused = map_.fused_with(name);
    const std::string& whole = fused ? fused->whole : name;
    if (!names_.insert(name).second)
      throw SpecError(mapped.pos, "tensors." + mapped.pattern,
                      fmt::format("two tensors map to '{}', one of them {}", name, mapped.ours));
    const auto [at, is_new] = by_name_.emplace(whole, tensors_.size());
    if (is_new) tensors_.push_back({{.name = whole, .type = type}, {}});
    std::vector<ExportedPart>& parts = tensors_[at->second].parts;
    const size_t index = fused ? fused->index : 0;
    if (is_new) parts.resize(fused ? fused->parts.size() : 1);
    parts[index] = std::move(part);
  }

  /// Sets the shape of a fused tensor. Throws EnvError if one of its parts is missing.
  void complete(ExportedTensor& tensor) const {
    Shape& shape = tensor.entry.shape;
    shape = tensor.parts[0].shape;
    if (tensor.parts.size() == 1) return;
    shape[0] = 0;
    for (const ExportedPart& part : tensor.parts) {
      if (part.tensor == nullptr)
        throw EnvError(fmt::format("{} is a fused tensor in the map, but the checkpoint lacks some of its parts",
                                   tensor.entry.name));
      shape[0] += part.shape[0];
    }
  }

  void write_part(SafetensorsWriter& writer, size_t entry, const ExportedPart& part, int64_t at) {
    if (part.tensor == nullptr)
      write_constant(writer, entry, part);
    else if (!part.mapped->order)
      write_same(writer, entry, part, at);
    else
      write_ordered(writer, entry, part, at);
  }

  static void write_constant(SafetensorsWriter& writer, size_t entry, const ExportedPart& part) {
    std::vector<uint8_t> bytes(static_cast<size_t>(bits_of(writer.header().entries[entry].type) / 8));
    if (part.value != 0) std::memcpy(bytes.data(), &part.value, sizeof part.value);  // I64
    writer.write(entry, 0, bytes);
  }

  void write_same(SafetensorsWriter& writer, size_t entry, const ExportedPart& part, int64_t at) {
    const StoredTensor& tensor = *part.tensor;
    const int64_t width = byte_size(dtype_of(tensor));
    for_each_block(tensor.shape, kExportedBlockElements, [&](const Box& box, int64_t first) {
      std::vector<uint8_t> block(static_cast<size_t>(num_elements(box.shape) * width));
      read(tensor, box, dtype_of(tensor), block.data());
      writer.write(entry, at + first * width, block);
    });
  }

  void write_ordered(SafetensorsWriter& writer, size_t entry, const ExportedPart& part, int64_t at) {
    const StoredTensor& tensor = *part.tensor;
    const DType dtype = dtype_of(tensor);
    const auto width = static_cast<size_t>(byte_size(dtype));
    const size_t parts = part.mapped->ordered_parts(), slice = part.index / parts;
    if (ordered_of_ != std::pair(&tensor, slice)) {  // q, k and v of one tensor follow each other
      Box box = whole_box(tensor.shape);
      if (part.mapped->each > 0) box.offset[0] = static_cast<int64_t>(slice), box.shape[0] = 1;
      ordered_.resize(static_cast<size_t>(num_elements(box.shape)) * width);
      read(tensor, box, dtype, ordered_.data());
      ordered_of_ = {&tensor, slice};
    }
    std::vector<std::byte> theirs(static_cast<size_t>(num_elements(part.shape)) * width);
    part.mapped->order->to_theirs(part.sizes, part.index % parts, ordered_.data(), theirs.data(), width);
    writer.write(entry, at, {reinterpret_cast<const uint8_t*>(theirs.data()), theirs.size()});
  }

  const Manifest& manifest_;
  const std::vector<StoredTensor> stored_;  ///< with_base()
  const NameMap& map_;
  const LayerNumbers& layers_;
  const ExportOptions& options_;
  PieceReader reader_;
  std::map<std::string, MappedTensor> mapped_;  ///< by our names
  std::vector<ExportedTensor> tensors_;
  std::map<std::string, size_t> by_name_;                          ///< index in tensors_
  std::set<std::string> names_;                                    ///< theirs, parts of fused tensors included
  std::vector<std::byte> ordered_;                                 ///< elements of ours that an order describes
  std::pair<const StoredTensor*, size_t> ordered_of_{nullptr, 0};  ///< their tensor, and index of MappedTensor::each
  std::vector<float> a_, b_;                                       ///< the adapter of adapter_of_
  std::vector<float> row_scales_;                                  ///< DoRA: the factor of each row; else empty
  const StoredTensor* adapter_of_ = nullptr;
  ExportedWeights result_;
};

void rename_part(const std::string& path, Disk& disk) {
  if (disk.rename(path + ".part", path) != 0)
    throw EnvError(fmt::format("{0}.part: cannot be renamed to {0}: {1}", path, std::strerror(errno)));
}

}  // namespace

ExportedWeights export_weights(const Manifest& manifest, const std::string& directory, const NameMap& map,
                               const LayerNumbers& layers, const std::string& path, const ExportOptions& options,
                               Disk& disk) {
  check(options.dtype != DType::i32, "weights are f32 or bf16");
  check(options.shard_bytes == 0, "one file has no limit");
  Exporter exporter(manifest, directory, map, layers, options);
  try {
    exporter.write(exporter.shards()[0], path + ".part", disk);
    rename_part(path, disk);
    const std::filesystem::path file = path;
    sync_directory(file.has_parent_path() ? file.parent_path().string() : ".", disk);
  } catch (...) {
    disk.unlink(path + ".part");
    throw;
  }
  return exporter.result();
}

ExportedWeights export_to_folder(const Manifest& manifest, const std::string& directory, const NameMap& map,
                                 const LayerNumbers& layers, const std::string& folder, const ExportOptions& options,
                                 Disk& disk) {
  Exporter exporter(manifest, directory, map, layers, options);
  const std::vector<std::vector<size_t>> shards = exporter.shards();
  if (shards.size() == 1) {
    exporter.write(shards[0], folder + "/model.safetensors", disk);
    return exporter.result();
  }
  nlohmann::ordered_json index = {{"metadata", {{"total_size", exporter.tensor_bytes()}}},
                                  {"weight_map", nlohmann::ordered_json::object()}};
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    exporter.write(shards[i], folder + "/" + file, disk);
    for (const size_t tensor : shards[i]) index["weight_map"][exporter.name(tensor)] = file;
  }
  const std::string text = index.dump(2) + "\n";
  DiskFile file(folder + "/model.safetensors.index.json", disk);
  file.write(0, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  file.sync_and_close();
  return exporter.result();
}

}  // namespace trainctl
