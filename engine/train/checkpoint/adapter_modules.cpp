// The modules of another tool's model that an adapted layer consists of, and PEFT's names of their adapters.
#include "engine/train/checkpoint/adapter_modules.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr std::string_view kWeightEnd = ".weight";

[[noreturn]] void refuse_layer(const AdaptedLayer& layer, const std::string& why) {
  throw EnvError(fmt::format("the adapter of {} cannot be expressed in PEFT's format: {}", layer.name, why));
}

std::string module_of(const AdaptedLayer& layer, const std::string& weight) {
  if (!weight.ends_with(kWeightEnd)) refuse_layer(layer, "the map names its weight " + weight);
  return weight.substr(0, weight.size() - kWeightEnd.size());
}

struct Place {
  size_t part = 0;
  int64_t row = 0, column = 0;
};

/// The place of one element of the job's weight in the tensors of PEFT's format ("theirs").
Place place_of(const AxisOrder& order, const AxisOrder::Sizes& sizes, int64_t unit, int64_t feature) {
  const std::vector<AxisOrder::Block> blocks = order.blocks_of(sizes, {{unit, feature}, {1, 1}});
  check(blocks.size() == 1, "an element is in one of their tensors");
  int64_t at = 0;
  for (size_t d = 0; d < blocks[0].shape.size(); ++d) at = at * blocks[0].shape[d] + blocks[0].box.offset[d];
  const int64_t columns = order.theirs_shape(sizes, blocks[0].part)[1];
  return {blocks[0].part, at / columns, at % columns};
}

/// Returns whether the units of the job's weight are columns in PEFT's format.
bool is_transposed(const AdaptedLayer& layer, const AxisOrder& order, const AxisOrder::Sizes& sizes) {
  const Place first = place_of(order, sizes, 0, 0);
  if (layer.features > 1) return place_of(order, sizes, 0, 1).row != first.row;
  return layer.units > 1 && place_of(order, sizes, 1, 0).column != first.column;
}

}  // namespace

std::string peft_a(const std::string& module) { return "base_model.model." + module + ".lora_A.weight"; }
std::string peft_b(const std::string& module) { return "base_model.model." + module + ".lora_B.weight"; }
std::string peft_magnitude(const std::string& module) {
  return "base_model.model." + module + ".lora_magnitude_vector";
}

AdapterModules::AdapterModules(std::vector<AdaptedLayer> layers, const NameMap& map, const LayerNumbers& numbers)
    : layers_(std::move(layers)) {
  for (AdaptedLayer& layer : layers_) place(layer, map, numbers);
  for (AdaptedLayer& layer : layers_) {  // the rows of fused modules follow those of the parts before them
    std::vector<int64_t> first(layer.modules.size());
    for (size_t m = 0; m < layer.modules.size(); ++m) {
      const std::optional<FusedPart> fused = map.fused_with(layer.modules[m] + std::string(kWeightEnd));
      if (!fused) {
        units_[layer.modules[m]] = part_units_.at(layer.modules[m]);
        continue;
      }
      int64_t units = 0;
      for (size_t part = 0; part < fused->parts.size(); ++part) {
        const auto known = part_units_.find(module_of(layer, fused->parts[part]));
        if (known == part_units_.end())
          refuse_layer(layer, fmt::format("{} also consists of {}, whose layer has no adapter", fused->whole,
                                          fused->parts[part]));
        if (part == fused->index) first[m] = units;
        units += known->second;
      }
      layer.modules[m] = module_of(layer, fused->whole);
      units_[layer.modules[m]] = units;
    }
    for (AdaptedLayer::Row& row : layer.rows) row.row += first[row.module];
  }
}

void AdapterModules::place(AdaptedLayer& layer, const NameMap& map, const LayerNumbers& numbers) {
  const std::string weight = layer.name + std::string(kWeightEnd);
  const std::optional<MappedTensor> mapped = map.of_ours(weight, numbers);
  if (!mapped) refuse_layer(layer, "the map has no pattern for " + weight);
  const AxisOrder order = mapped->order ? *mapped->order : AxisOrder::same(2);
  AxisOrder::Sizes sizes;
  try {
    sizes = order.sizes_from_ours({layer.units, layer.features}, mapped->sizes);
  } catch (const OrderFault& fault) {
    throw SpecError(mapped->pos, "tensors." + mapped->pattern,
                    "the order does not fit " + weight + ": " + fault.message);
  }
  std::vector<Shape> shapes;
  for (size_t part = 0; part < mapped->theirs.size(); ++part) {
    shapes.push_back(order.theirs_shape(sizes, part));
    if (shapes.back().size() != 2) refuse_layer(layer, mapped->theirs[part] + " is not a matrix");
    layer.modules.push_back(module_of(layer, mapped->theirs[part]));
  }
  layer.is_transposed = is_transposed(layer, order, sizes);
  for (size_t part = 0; part < shapes.size(); ++part)
    part_units_[layer.modules[part]] = shapes[part][layer.is_transposed ? 1 : 0];
  const auto turned = [&](Place p) {
    if (layer.is_transposed) std::swap(p.row, p.column);
    return p;
  };
  const int64_t column = turned(place_of(order, sizes, 0, 0)).column;
  for (int64_t unit = 0; unit < layer.units; ++unit) {
    const Place p = turned(place_of(order, sizes, unit, 0));
    if (p.column != column) refuse_layer(layer, "the order of its weight mixes rows and columns");
    layer.rows.push_back({p.part, p.row});
  }
  for (int64_t feature = 0; feature < layer.features; ++feature)
    layer.columns.push_back(turned(place_of(order, sizes, 0, feature)).column);
}

}  // namespace trainctl
