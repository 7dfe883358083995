// checkpoint.json as text: one line for each file and each tensor, the checksum last.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/measures.h"
#include "engine/base/printable.h"
#include "engine/train/checkpoint/manifest.h"
#include "engine/train/files/digest.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kBeforeDigits = "\"checksum\": \"", kAfterDigits = "\"}\n";
constexpr size_t kLastLineBytes = kBeforeDigits.size() + kDigestDigits + kAfterDigits.size();
constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::i32};

std::string last_line(std::string_view before) {
  return std::string(kBeforeDigits) + digest_of(before) + std::string(kAfterDigits);
}

/// A JSON value and its path in the file. The path is composed only when a message needs it.
class ManifestValue {
 public:
  ManifestValue(const Json& json, const std::string& file) : json_(json), file_(file) {}

  [[noreturn]] void fail(const std::string& what) const {
    const std::string path = this->path();
    throw EnvError(file_ + ": " + (path.empty() ? "" : path + ": ") + what);
  }

  ManifestValue operator[](const char* field) const {
    require(json_.is_object(), "an object");
    const auto found = json_.find(field);
    if (found == json_.end()) fail(fmt::format("has no field '{}'", field));
    return {*found, file_, this, field, 0};
  }
  bool has(const char* field) const { return json_.is_object() && json_.contains(field); }

  template <class Visit>
  void each(const Visit& visit) const {
    require(json_.is_array(), "a list");
    for (size_t i = 0; i < json_.size(); ++i) visit(ManifestValue(json_[i], file_, this, nullptr, i));
  }

  template <class Visit>
  void each_field(const Visit& visit) const {
    require(json_.is_object(), "an object");
    for (const auto& [name, value] : json_.items()) visit(name, ManifestValue(value, file_, this, name.c_str(), 0));
  }

  std::string text() const {
    require(json_.is_string(), "a text");
    return json_.get<std::string>();
  }

  uint64_t unsigned_integer(uint64_t most) const {
    require(json_.is_number_unsigned() && json_.get<uint64_t>() <= most, fmt::format("an integer from 0 to {}", most));
    return json_.get<uint64_t>();
  }
  int64_t count() const { return static_cast<int64_t>(unsigned_integer(std::numeric_limits<int64_t>::max())); }
  int number() const { return static_cast<int>(unsigned_integer(std::numeric_limits<int>::max())); }

  Shape shape() const {
    Shape sizes;
    each([&](const ManifestValue& size) { sizes.push_back(size.count()); });
    return sizes;
  }

  DType dtype() const {
    const std::string name = text();
    for (const DType type : kTypes)
      if (to_string(stored_type(type)) == name) return type;
    fail("expected F32, BF16, F16 or I32, found '" + printable(shortened(name)) + "'");
  }

  bool flag() const {
    require(json_.is_boolean(), "true or false");
    return json_.get<bool>();
  }

  double metric() const {
    if (json_.is_number()) return json_.get<double>();
    for (const double value : {std::nan(""), HUGE_VAL, -HUGE_VAL})
      if (text() == not_finite_name(value)) return value;
    fail("expected a number, nan, inf or -inf");
  }

 private:
  ManifestValue(const Json& json, const std::string& file, const ManifestValue* parent, const char* field, size_t index)
      : json_(json), file_(file), parent_(parent), field_(field), index_(index) {}

  std::string path() const {
    if (parent_ == nullptr) return "";
    const std::string before = parent_->path();
    if (field_ == nullptr) return fmt::format("{}[{}]", before, index_);
    return before + (before.empty() ? "" : ".") + printable(shortened(field_));
  }

  void require(bool holds, const std::string& expected) const {
    if (holds) return;
    const std::string found = json_.is_structured()
                                  ? json_.type_name()
                                  : shortened(json_.dump(-1, ' ', false, Json::error_handler_t::replace));
    fail("expected " + expected + ", found " + printable(found));
  }

  const Json& json_;
  const std::string& file_;
  const ManifestValue* parent_ = nullptr;
  const char* field_ = nullptr;
  size_t index_ = 0;
};

/// The format number that the text states; nullopt if it states none.
std::optional<uint64_t> format_of(const Json& json) {
  if (!json.is_object() || !json.contains("format") || !json["format"].is_number_unsigned()) return {};
  return json["format"].get<uint64_t>();
}

void refuse_other_format(const Json& json, const std::string& file) {
  if (const auto format = format_of(json); format && *format > uint64_t{kManifestFormat})
    throw EnvError(
        fmt::format("{}: has format {}, but this trainctl reads formats up to {}; use the version that wrote it, or "
                    "a later one",
                    file, *format, kManifestFormat));
}

/// A later format may end in another way, so the number of the format is checked first.
void check_last_line(std::string_view text, const std::string& file) {
  const std::string_view before = text.substr(0, text.size() - std::min(text.size(), kLastLineBytes));
  const std::string expected = last_line(before), found(text.substr(before.size()));
  if (found == expected) return;
  refuse_other_format(Json::parse(text, nullptr, false), file);
  throw EnvError(fmt::format("{}: is damaged or truncated: expected {} as its last line, found {}", file,
                             printable(expected.substr(0, expected.size() - 1)),
                             printable(found.substr(0, found.find_last_not_of('\n') + 1))));
}

Json parse_json(std::string_view text, const std::string& file) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    const std::string what = error.what();
    throw EnvError(fmt::format("{}: byte {}: {}", file, error.byte, printable(what.substr(what.find("] ") + 2))));
  } catch (const Json::out_of_range& error) {  // A number such as 1e999 is out of range.
    const std::string what = error.what();
    throw EnvError(file + ": " + printable(what.substr(what.find("] ") + 2)));
  }
}

StoredTensor read_tensor(const ManifestValue& value) {
  StoredTensor tensor{.name = value["name"].text(),
                      .slot = value["slot"].text(),
                      .dtype = value["dtype"].dtype(),
                      .shape = value["shape"].shape(),
                      .pieces = {}};
  value["pieces"].each([&](const ManifestValue& piece) {
    tensor.pieces.push_back({piece["file"].text(), {piece["offset"].shape(), piece["shape"].shape()}});
  });
  return tensor;
}

StoredBase read_base(const ManifestValue& value) {
  StoredBase base{.from = value["from"].text(), .fingerprint = value["fingerprint"].text(), .tensors = {}};
  value["tensors"].each(
      [&](const ManifestValue& tensor) { base.tensors.emplace_back(tensor["name"].text(), tensor["shape"].shape()); });
  return base;
}

Manifest read(const ManifestValue& root) {
  Manifest manifest;
  if (root["format"].unsigned_integer(kManifestFormat) != kManifestFormat) root["format"].fail("expected 1, found 0");
  manifest.trainctl = root["trainctl"].text();
  manifest.name = root["name"].text();
  manifest.run = root["run"].number();
  manifest.attempt = root["attempt"].number();
  manifest.step = root["step"].count();
  manifest.epoch = root["epoch"].count();
  manifest.epoch_step = root["epoch_step"].count();
  manifest.samples = root["samples"].count();
  manifest.seed = root["seed"].unsigned_integer(std::numeric_limits<uint64_t>::max());
  manifest.written = root["written"].text();
  if (root.has("lineage")) manifest.lineage = root["lineage"].text();
  if (root.has("weights_only")) manifest.weights_only = root["weights_only"].flag();
  if (root.has("base")) manifest.base = read_base(root["base"]);
  root["files"].each([&](const ManifestValue& file) {
    manifest.files.push_back({file["name"].text(), file["bytes"].count(), file["xxh128"].text()});
  });
  root["tensors"].each([&](const ManifestValue& tensor) { manifest.tensors.push_back(read_tensor(tensor)); });
  if (root.has("classes"))
    root["classes"].each([&](const ManifestValue& name) { manifest.classes.push_back(name.text()); });
  if (root.has("order")) manifest.order = root["order"].text();
  if (root.has("train_share")) manifest.train_share = root["train_share"].metric();
  if (root.has("epoch_sums")) {
    const ManifestValue sums = root["epoch_sums"];
    manifest.epoch_loss_sum = sums["loss"].metric();
    sums["metrics"].each([&](const ManifestValue& sum) { manifest.epoch_metric_sums.push_back(sum.metric()); });
    manifest.is_finite = sums["finite"].flag();
  }
  if (root.has("metrics")) {
    root["metrics"].each_field([&](const std::string& name, const ManifestValue& value) {
      manifest.metrics.emplace_back(name, value.metric());
    });
  }
  if (root.has("best")) {
    root["best"].each_field([&](const std::string& name, const ManifestValue& best) {
      manifest.best.emplace_back(name, BestValue{best["value"].metric(), best["step"].count(), best["since"].count()});
    });
  }
  if (root.has("plateau")) {
    const ManifestValue plateau = root["plateau"];
    manifest.plateau = PlateauState{plateau["scale"].metric(), plateau["best"].metric(), plateau["validations"].count(),
                                    plateau["worse"].count(), plateau["cooldown"].count()};
  }
  if (root.has("loss_scale")) {
    const ManifestValue state = root["loss_scale"];
    manifest.loss_scale =
        LossScaleState{state["scale"].metric(), state["finite_steps"].count(), state["skipped"].count()};
  }
  return manifest;
}

Json json_of(const StoredTensor& tensor) {
  Json pieces = Json::array();
  for (const StoredPiece& piece : tensor.pieces)
    pieces.push_back({{"file", piece.file}, {"offset", piece.box.offset}, {"shape", piece.box.shape}});
  return {{"name", tensor.name},
          {"slot", tensor.slot},
          {"dtype", to_string(stored_type(tensor.dtype))},
          {"shape", tensor.shape},
          {"pieces", std::move(pieces)}};
}

Json json_of_base(const StoredBase& base) {
  Json tensors = Json::array();
  for (const auto& [name, shape] : base.tensors) tensors.push_back({{"name", name}, {"shape", shape}});
  return {{"from", base.from}, {"fingerprint", base.fingerprint}, {"tensors", std::move(tensors)}};
}

Json json_of_number(double value) { return std::isfinite(value) ? Json(value) : Json(not_finite_name(value)); }

/// Converts JSON to text, and replaces invalid UTF-8: names of folders need not be valid UTF-8.
std::string dump_replacing(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

template <class Item, class ToJson>
std::string lines(const std::vector<Item>& items, const ToJson& to_json) {
  std::string text;
  for (const Item& item : items) text += (text.empty() ? "\n" : ",\n") + to_json(item).dump();
  return "[" + text + "]";
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  const std::string defect = manifest_defect(manifest);
  check(defect.empty(), "a manifest is sound before it is written, but " + defect);
  Json head = {{"format", kManifestFormat}, {"trainctl", manifest.trainctl},     {"name", manifest.name},
               {"run", manifest.run},       {"attempt", manifest.attempt},       {"step", manifest.step},
               {"epoch", manifest.epoch},   {"epoch_step", manifest.epoch_step}, {"samples", manifest.samples},
               {"seed", manifest.seed},     {"written", manifest.written}};
  if (!manifest.lineage.empty()) head["lineage"] = manifest.lineage;
  if (manifest.weights_only) head["weights_only"] = true;
  if (manifest.base) head["base"] = json_of_base(*manifest.base);
  std::string text = head.dump();
  text.pop_back();  // the object continues
  text += ",\n\"files\": " + lines(manifest.files, [](const StoredFile& file) {
            return Json{{"name", file.name}, {"bytes", file.bytes}, {"xxh128", file.xxh128}};
          });
  text += ",\n\"tensors\": " + lines(manifest.tensors, json_of);
  if (!manifest.classes.empty()) text += ",\n\"classes\": " + dump_replacing(Json(manifest.classes));
  if (!manifest.order.empty()) text += ",\n\"order\": " + Json(manifest.order).dump();
  if (manifest.train_share > 0) text += ",\n\"train_share\": " + Json(manifest.train_share).dump();
  Json sums = {
      {"loss", json_of_number(manifest.epoch_loss_sum)}, {"metrics", Json::array()}, {"finite", manifest.is_finite}};
  for (const double sum : manifest.epoch_metric_sums) sums["metrics"].push_back(json_of_number(sum));
  text += ",\n\"epoch_sums\": " + sums.dump();
  if (!manifest.metrics.empty()) {
    Json metrics;
    for (const auto& [name, value] : manifest.metrics) metrics[name] = json_of_number(value);
    text += ",\n\"metrics\": " + metrics.dump();
  }
  if (!manifest.best.empty()) {
    Json bests;
    for (const auto& [name, best] : manifest.best)
      bests[name] = {{"value", json_of_number(best.value)}, {"step", best.step}, {"since", best.since}};
    text += ",\n\"best\": " + bests.dump();
  }
  if (const auto& plateau = manifest.plateau)
    text += ",\n\"plateau\": " + Json{{"scale", json_of_number(plateau->scale)},
                                      {"best", json_of_number(plateau->best)},
                                      {"validations", plateau->validations},
                                      {"worse", plateau->worse},
                                      {"cooldown", plateau->cooldown}}
                                     .dump();
  if (const auto& state = manifest.loss_scale)
    text += ",\n\"loss_scale\": " + Json{{"scale", json_of_number(state->scale)},
                                         {"finite_steps", state->finite_steps},
                                         {"skipped", state->skipped}}
                                        .dump();
  text += ",\n";
  return text + last_line(text);
}

Manifest parse_manifest(std::string_view text, const std::string& file) {
  check_last_line(text, file);
  const Json json = parse_json(text, file);
  refuse_other_format(json, file);
  Manifest manifest = read(ManifestValue(json, file));
  if (const std::string defect = manifest_defect(manifest); !defect.empty()) throw EnvError(file + ": " + defect);
  return manifest;
}

std::string_view checksum_of(std::string_view text) {
  check(text.size() >= kLastLineBytes, "a manifest has a last line");
  return text.substr(text.size() - kLastLineBytes + kBeforeDigits.size(), kDigestDigits);
}

}  // namespace trainctl
