// Low-rank adapters (LoRA): ordinary layers, added to the layers that adapters.lora names, so plans, programs and
// checkpoints treat them like all others.
#include "engine/spec/adapters.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/base/name_pattern.h"
#include "engine/base/text.h"
#include "engine/spec/added_layers.h"

namespace trainctl {
namespace {

constexpr std::string_view kLoraDropout = ".lora_dropout", kLoraA = ".lora_a", kLoraB = ".lora_b",
                           kLoraScale = ".lora_scale", kLoraProduct = ".lora_product", kLoraTotal = ".lora_sum",
                           kDora = ".dora", kLoraRest = ".lora_rest", kLoraChosen = ".lora_chosen";

bool pattern_matches(const std::string& pattern, const std::string& name) {
  return name == pattern || name_matches(pattern, name);
}

bool is_adapted(const LoraSpec& lora, const LayerSpec& layer) {
  return layer.type == "dense" && std::ranges::any_of(lora.layers, [&](const std::string& pattern) {
           return pattern_matches(pattern, layer.name);
         });
}

/// Makes the layers of all adapters of one adapted layer.
class AdapterLayers {
 public:
  AdapterLayers(const LoraSpec& lora, const LayerSpec& beside) : lora_(lora), beside_(beside) {}

  std::vector<LayerSpec> one() {
    const std::string product = product_of("");
    if (lora_.dora)
      normed("", product);
    else
      add(std::string(kAdapterSum), "add", {beside_.name, product}, {});
    return std::move(layers_);
  }

  std::vector<LayerSpec> several(const AdaptersSpec& adapters) {
    std::vector<std::string> choices = {adapters.field};
    for (const std::string& name : adapters.names) {
      const std::string own = "." + name;
      const std::string product = product_of(own);
      choices.push_back(lora_.dora ? normed(own, product) : product);
    }
    if (lora_.dora) {
      add(std::string(kAdapterSum), "choose_rows", std::move(choices), {});
    } else {
      const std::string chosen = add(std::string(kLoraChosen), "choose_rows", std::move(choices), {});
      add(std::string(kAdapterSum), "add", {beside_.name, chosen}, {});
    }
    return std::move(layers_);
  }

 private:
  std::string add(const std::string& suffix, const char* type, std::vector<std::string> inputs, Attrs attrs) {
    layers_.push_back({.name = beside_.name + suffix,
                       .type = type,
                       .inputs = std::move(inputs),
                       .attrs = std::move(attrs),
                       .path = beside_.path,
                       .use = beside_.use});
    return layers_.back().name;
  }

  /// Adds the layers of one adapter up to the scaled low-rank product, and returns the name of the last one. `own` is
  /// the suffix ".NAME" of one of several adapters, or "". The result of the first product is scaled, because its rows
  /// are short: scaling the result of the second would take a pass over wide rows.
  std::string product_of(const std::string& own) {
    const auto suffix = [&](std::string_view end) { return own + std::string(end); };
    std::string last = beside_.inputs[0];
    if (lora_.dropout > 0) last = add(suffix(kLoraDropout), "dropout", {last}, {{"p", lora_.dropout}});
    last = add(suffix(kLoraA), "dense", {last}, {{"units", lora_.rank}, {"bias", false}});
    last = add(suffix(kLoraScale), "scale", {last}, {{"factor", adapter_factor(lora_)}});
    return add(suffix(kLoraB), "dense", {last},
               {{"units", units()}, {"bias", false}, {"init.type", std::string("constant")}, {"init.value", 0.0}});
  }

  /// Adds the layers of DoRA that follow an adapter's product. Returns the last one.
  std::string normed(const std::string& own, const std::string& product) {
    const auto suffix = [&](std::string_view end) { return own + std::string(end); };
    if (lora_.dropout == 0) {
      const std::string sum = add(suffix(kLoraTotal), "add", {beside_.name, product}, {});
      return add(suffix(kDora), "dora", {sum}, dora_attrs(own));
    }
    const std::string base = add(suffix(kLoraProduct), "dense", {beside_.name + suffix(kLoraDropout)},
                                 {{"units", units()}, {"bias", false}, {"share", owner()}});
    const std::string sum = add(suffix(kLoraTotal), "add", {base, product}, {});
    Attrs attrs = dora_attrs(own);
    attrs.set("bias", false);
    const std::string scaled = add(suffix(kDora), "dora", {sum}, std::move(attrs));
    const std::string rest = add(suffix(kLoraRest), "sub", {beside_.name, base}, {});
    return add(suffix(kAdapterSum), "add", {scaled, rest}, {});
  }

  Attrs dora_attrs(const std::string& own) const {
    Attrs attrs{{"layer", beside_.name},
                {"a", beside_.name + own + std::string(kLoraA)},
                {"b", beside_.name + own + std::string(kLoraB)},
                {"factor", adapter_factor(lora_)}};
    if (owner() != beside_.name) attrs.set("share", owner());
    return attrs;
  }

  /// A layer that another one adds may have as many units as that has features, which only the graph knows
  /// (added_layers.h).
  int64_t units() const { return beside_.attrs.integer("units", 0); }

  /// Returns the name of the layer that owns the weight of the adapted layer.
  std::string owner() const {
    const std::string shared = beside_.attrs.text("share");
    return shared.empty() ? beside_.name : shared;
  }

  const LoraSpec& lora_;
  const LayerSpec& beside_;
  std::vector<LayerSpec> layers_;
};

}  // namespace

std::vector<LayerSpec> adapter_layers(const JobSpec& spec, const LayerSpec& layer) {
  if (!spec.adapters.lora || !is_adapted(*spec.adapters.lora, layer)) return {};
  AdapterLayers layers(*spec.adapters.lora, layer);
  return spec.adapters.names.empty() ? layers.one() : layers.several(spec.adapters);
}

std::string read_layer(const JobSpec& spec, const std::string& layer) {
  std::string read = layer;
  visit_layers(spec, [&](const LayerSpec& each) {
    if (each.name != layer) return;
    if (const std::vector<LayerSpec> adapter = adapter_layers(spec, each); !adapter.empty()) read = adapter.back().name;
  });
  return read;
}

std::string_view adapted_layer(const JobSpec& spec, std::string_view layer) {
  if (!spec.adapters.lora) return "";
  for (const std::string_view end : {kLoraDropout, kLoraA, kLoraB, kLoraScale, kLoraProduct, kLoraTotal, kDora,
                                     kLoraRest, kLoraChosen, kAdapterSum}) {
    if (!layer.ends_with(end)) continue;
    layer.remove_suffix(end.size());
    for (const std::string& name : spec.adapters.names)
      if (layer.ends_with("." + name)) return layer.substr(0, layer.size() - name.size() - 1);
    return layer;
  }
  return "";
}

double adapter_factor(const LoraSpec& lora) {
  const auto rank = static_cast<double>(lora.rank);
  return lora.alpha / (lora.rank_stabilized ? std::sqrt(rank) : rank);
}

bool is_adapter_parameter(std::string_view name) {
  return name.ends_with(kAdapterA) || name.ends_with(kAdapterB) || name.ends_with(kAdapterMagnitude);
}

bool is_adapter_parameter(const JobSpec& spec, std::string_view name) {
  return spec.adapters.lora && is_adapter_parameter(name);
}

bool is_frozen(const JobSpec& spec, const std::string& name) {
  if (is_adapter_parameter(spec, name)) return false;
  if (spec.train.freeze.empty()) return spec.adapters.lora.has_value();
  return std::ranges::any_of(spec.train.freeze,
                             [&](const std::string& pattern) { return pattern_matches(pattern, name); });
}

FrozenType storage_of(const JobSpec& spec, const std::string& name) {
  constexpr std::string_view kWeight = ".weight";
  const FrozenType type = spec.train.frozen_type;
  const bool is_same = type == FrozenType::same || (type == FrozenType::bf16 && spec.precision == Precision::bf16);
  if (is_same || !name.ends_with(kWeight) || !is_frozen(spec, name)) return FrozenType::same;
  const auto is_dense = [](const LayerSpec& layer) { return layer.type == "dense"; };
  const auto last = std::find_if(spec.network.rbegin(), spec.network.rend(), is_dense);
  const std::string_view owner = std::string_view(name).substr(0, name.size() - kWeight.size());
  const auto is_owner = [&](const LayerSpec& layer) { return layer.name == owner && is_dense(layer); };
  const bool has_owner = std::ranges::any_of(spec.network, [&](const LayerSpec& layer) {
    return is_owner(layer) ||
           (layer.name == layer_before_dot(owner) && std::ranges::any_of(added_layers(layer), is_owner));
  });
  return has_owner && last->name != owner ? type : FrozenType::same;
}

bool saves_without_base(const JobSpec& spec) { return spec.adapters.lora && spec.weights && !spec.weights->partial; }

std::vector<Diagnostic> check_adapters(const JobSpec& spec) {
  std::vector<Diagnostic> errors;
  if (!spec.adapters.lora) return errors;
  const std::vector<std::string>& patterns = spec.adapters.lora->layers;
  for (size_t p = 0; p < patterns.size(); ++p) {
    std::string other;  // a layer that it names and that cannot be adapted
    bool adapts = false;
    visit_layers(spec, [&](const LayerSpec& layer) {
      if (!pattern_matches(patterns[p], layer.name)) return;
      adapts = adapts || layer.type == "dense";
      if (layer.type != "dense") other = layer.name + ", which is " + layer.type;
    });
    const std::string path = "adapters.lora.layers[" + std::to_string(p) + "]";
    if (!adapts)
      errors.push_back({spec.position(path), path,
                        other.empty() ? "no layer matches '" + patterns[p] + "'"
                                      : "'" + patterns[p] + "' names no dense layer, but " + other,
                        "adapters are for layers of type dense"});
  }
  return errors;
}

}  // namespace trainctl
