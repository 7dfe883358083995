// See the header.
#include "engine/train/checkpoint/export_weights.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/train/checkpoint/blocks.h"
#include "engine/train/checkpoint/piece_reader.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

constexpr int64_t kExportedBlockElements = int64_t{1} << 20;

/// A tensor of the file: a part of one of ours, or a constant.
struct ExportedPart {
  const StoredTensor* tensor = nullptr;  ///< null: a constant
  const MappedTensor* mapped = nullptr;
  size_t index = 0;  ///< index in mapped->theirs
  AxisOrder::Sizes sizes;
  int64_t value = 0;  ///< value of a constant
};

class Exporter {
 public:
  Exporter(const Manifest& manifest, const std::string& directory, const NameMap& map, const LayerNumbers& layers,
           const ExportOptions& options)
      : manifest_(manifest), map_(map), layers_(layers), options_(options), reader_(manifest, directory) {
    std::vector<std::string> names;
    for (const StoredTensor& tensor : manifest_.tensors) names.push_back(tensor.name);
    result_.unused = map_.unused(names);
    for (const StoredTensor& tensor : manifest_.tensors) {
      if (tensor.slot == kWeightSlot || tensor.slot == kStateSlot)
        add(tensor);
      else
        ++result_.optimizer_tensors;
    }
    if (!result_.left_out.empty() && !options.partial)
      throw EnvError(
          fmt::format("{}: the map does not name {} of {} tensors:\n  {}\nadd patterns for them, or leave "
                      "them out with --partial",
                      directory, result_.left_out.size(), result_.left_out.size() + mapped_.size(),
                      join(result_.left_out, "\n  ")));
    if (parts_.empty()) throw EnvError(directory + ": the map names none of its tensors");
  }

  void write(const std::string& path, Disk& disk) {
    // transformers opens only files that name their maker's framework; the elements lie as torch has them.
    SafetensorsWriter writer(path, entries_,
                             {{"format", "pt"},
                              {"trainctl", manifest_.trainctl},
                              {"name", manifest_.name},
                              {"step", std::to_string(manifest_.step)}},
                             disk);
    for (size_t i = 0; i < writer.header().entries.size(); ++i) {  // in the order of the file
      const ExportedPart& part = parts_.at(writer.header().entries[i].name);
      if (part.tensor == nullptr)
        write_constant(writer, i, part);
      else if (!part.mapped->order)
        write_same(writer, i, part);
      else
        write_ordered(writer, i, part);
    }
    result_.tensors = static_cast<int64_t>(entries_.size());
    result_.bytes = writer.finish().bytes;
  }

  const ExportedWeights& result() const { return result_; }

 private:
  DType dtype_of(const StoredTensor& tensor) const { return tensor.dtype == DType::i32 ? DType::i32 : options_.dtype; }

  void add(const StoredTensor& tensor) {
    std::optional<MappedTensor> found = map_.of_ours(tensor.name, layers_);
    if (!found) {
      result_.left_out.push_back(tensor.name);
      return;
    }
    const MappedTensor& mapped = mapped_.emplace(tensor.name, std::move(*found)).first->second;
    AxisOrder::Sizes sizes;
    if (mapped.order) {
      try {
        sizes = mapped.order->sizes_from_ours(tensor.shape, mapped.sizes);
      } catch (const OrderFault& fault) {
        throw SpecError(
            mapped.pos, "tensors." + mapped.pattern,
            fmt::format("the order does not fit {} {}: {}", tensor.name, to_string(tensor.shape), fault.message));
      }
    }
    for (size_t i = 0; i < mapped.theirs.size(); ++i) {
      const Shape shape = mapped.order ? mapped.order->theirs_shape(sizes, i) : tensor.shape;
      add_entry(mapped.theirs[i], stored_type(dtype_of(tensor)), shape, {&tensor, &mapped, i, sizes}, mapped);
    }
    for (const MappedConstant& constant : map_.constants_with(tensor.name, manifest_.step))
      add_entry(constant.name, constant.type, {}, {.value = constant.value}, mapped);
  }

  void add_entry(const std::string& name, StoredType type, const Shape& shape, ExportedPart part, const MappedTensor& mapped) {
    const auto [at, is_new] = parts_.try_emplace(name, std::move(part));
    if (!is_new)
      throw SpecError(mapped.pos, "tensors." + mapped.pattern,
                      fmt::format("two tensors become '{}', one of them {}", name, mapped.ours));
    entries_.push_back({.name = name, .type = type, .shape = shape});
  }

  static void write_constant(SafetensorsWriter& writer, size_t entry, const ExportedPart& part) {
    std::vector<uint8_t> bytes(static_cast<size_t>(bits_of(writer.header().entries[entry].type) / 8));
    if (part.value != 0) std::memcpy(bytes.data(), &part.value, sizeof part.value);  // I64
    writer.write(entry, 0, bytes);
  }

  void write_same(SafetensorsWriter& writer, size_t entry, const ExportedPart& part) {
    const StoredTensor& tensor = *part.tensor;
    const int64_t width = byte_size(dtype_of(tensor));
    for_each_block(tensor.shape, kExportedBlockElements, [&](const Box& box, int64_t first) {
      std::vector<uint8_t> block(static_cast<size_t>(num_elements(box.shape) * width));
      reader_.read(tensor.name, tensor.slot, box, dtype_of(tensor), block.data());
      writer.write(entry, first * width, block);
    });
  }

  void write_ordered(SafetensorsWriter& writer, size_t entry, const ExportedPart& part) {
    const StoredTensor& tensor = *part.tensor;
    const DType dtype = dtype_of(tensor);
    const auto width = static_cast<size_t>(byte_size(dtype));
    if (whole_of_ != &tensor) {  // q, k and v of one tensor follow each other
      whole_.resize(static_cast<size_t>(num_elements(tensor.shape)) * width);
      reader_.read(tensor.name, tensor.slot, whole_box(tensor.shape), dtype, whole_.data());
      whole_of_ = &tensor;
    }
    std::vector<std::byte> theirs(static_cast<size_t>(writer.header().entries[entry].bytes()));
    part.mapped->order->to_theirs(part.sizes, part.index, whole_.data(), theirs.data(), width);
    writer.write(entry, 0, {reinterpret_cast<const uint8_t*>(theirs.data()), theirs.size()});
  }

  const Manifest& manifest_;
  const NameMap& map_;
  const LayerNumbers& layers_;
  const ExportOptions& options_;
  PieceReader reader_;
  std::map<std::string, MappedTensor> mapped_;  ///< by our names
  std::map<std::string, ExportedPart> parts_;           ///< by their names
  std::vector<SafetensorsEntry> entries_;
  std::vector<std::byte> whole_;
  const StoredTensor* whole_of_ = nullptr;
  ExportedWeights result_;
};

}  // namespace

ExportedWeights export_weights(const Manifest& manifest, const std::string& directory, const NameMap& map,
                               const LayerNumbers& layers, const std::string& path, const ExportOptions& options,
                               Disk& disk) {
  check(options.dtype != DType::i32, "weights are f32 or bf16");
  Exporter exporter(manifest, directory, map, layers, options);
  const std::string part = path + ".part";
  try {
    exporter.write(part, disk);
    if (disk.rename(part, path) != 0)
      throw EnvError(fmt::format("{}: cannot be renamed to {}: {}", part, path, std::strerror(errno)));
    const std::filesystem::path file = path;
    sync_directory(file.has_parent_path() ? file.parent_path().string() : ".", disk);
  } catch (...) {
    disk.unlink(part);
    throw;
  }
  return exporter.result();
}

}  // namespace trainctl
