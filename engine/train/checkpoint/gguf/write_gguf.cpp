// A model folder as one file of llama.cpp: settings, tokenizer and weights.
#include "engine/train/checkpoint/gguf/write_gguf.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/error.h"
#include "engine/train/checkpoint/gguf/gguf_model.h"
#include "engine/train/checkpoint/gguf/gguf_tokenizer.h"
#include "engine/train/checkpoint/weight_files.h"

namespace trainctl {
namespace {

constexpr int64_t kReadElements = int64_t{1} << 22;
constexpr const char* kRotaryFactors = "rope_freqs.weight";

/// The number by which the format names the type of most tensors of the file: 0 f32, 1 f16, 7 q8_0.
uint32_t file_type(GgufType type) { return type == GgufType::f32 ? 0 : type == GgufType::f16 ? 1 : 7; }

nlohmann::json read_config(const std::string& folder) {
  std::ostringstream text;
  text << std::ifstream(folder + "/config.json").rdbuf();
  nlohmann::json config = nlohmann::json::parse(text.str(), nullptr, false);
  if (!config.is_object()) throw EnvError(folder + "/config.json is not a JSON object");
  return config;
}

struct PlacedTensor {
  std::string theirs;  ///< name in the model folder
  Shape shape;         ///< there
  GgufPlace place;
};

GgufTensor tensor_of(const PlacedTensor& placed, GgufType type) {
  GgufTensor tensor{.name = placed.place.name, .type = type, .shape = placed.shape};
  if (placed.place.is_transposed) std::swap(tensor.shape.at(0), tensor.shape.at(1));
  if (tensor.shape.size() < 2) tensor.type = GgufType::f32;
  if (tensor.type == GgufType::q8_0 && tensor.shape.back() % kGgufBlock != 0) tensor.type = GgufType::f16;
  return tensor;
}

/// Copies one tensor, by rows.
class TensorCopy {
 public:
  TensorCopy(const WeightFiles& files, const PlacedTensor& placed) : files_(files), placed_(placed) {}

  void to(GgufWriter& writer, size_t tensor) {
    const int64_t all = num_elements(placed_.shape);
    const int64_t columns = placed_.shape.empty() ? 1 : placed_.shape.back(), rows = columns == 0 ? 0 : all / columns;
    if (placed_.place.is_transposed) return transposed(writer, tensor, rows, columns);
    const int64_t at_once = placed_.place.paired_heads > 0 ? 1 : std::max<int64_t>(1, kReadElements / columns);
    std::vector<float> values;
    for (int64_t row = 0; row < rows; row += at_once) {
      const int64_t count = std::min(at_once, rows - row) * columns;
      values.resize(static_cast<size_t>(count));
      files_.read_f32(placed_.theirs, source_row(row, rows) * columns, count, values.data());
      for (float& value : values) value += placed_.place.added;
      writer.write(tensor, row * columns, values);
    }
  }

 private:
  /// The row in the model folder that belongs at this row of the file. The file interleaves a head's rows [0, half)
  /// with its rows [half, 2 half).
  int64_t source_row(int64_t row, int64_t rows) const {
    if (placed_.place.paired_heads == 0) return row;
    const int64_t size = rows / placed_.place.paired_heads, head = row / size, in_head = row % size;
    return head * size + (in_head % 2) * (size / 2) + in_head / 2;
  }

  void transposed(GgufWriter& writer, size_t tensor, int64_t rows, int64_t columns) {
    std::vector<float> values(static_cast<size_t>(rows * columns)), turned(values.size());
    files_.read_f32(placed_.theirs, 0, rows * columns, values.data());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        turned[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
    writer.write(tensor, 0, turned);
  }

  const WeightFiles& files_;
  const PlacedTensor& placed_;
};

}  // namespace

WrittenGguf write_gguf(const std::string& folder, const std::string& path, const GgufOptions& options) {
  const nlohmann::json config = read_config(folder);
  const GgufModel model(config);
  const WeightFiles files(folder);
  std::vector<PlacedTensor> placed;
  std::vector<GgufTensor> tensors;
  int64_t vocab = 0;
  for (const std::string& name : files.names()) {
    const std::optional<GgufPlace> place = model.place_of(name);
    if (!place) continue;
    placed.push_back({name, files.find(name)->shape, *place});
    tensors.push_back(tensor_of(placed.back(), options.type));
    if (place->name == "token_embd.weight") vocab = tensors.back().shape.front();
  }
  std::vector<std::pair<std::string, GgufSetting>> settings = model.settings();
  settings.emplace_back("general.name", options.name);
  settings.emplace_back("general.file_type", file_type(options.type));
  settings.emplace_back("general.quantization_version", uint32_t{2});
  for (auto& setting : gguf_tokenizer(options.tokenizer, vocab)) settings.push_back(std::move(setting));
  const std::vector<float> factors = model.rotary_factors();
  if (!factors.empty()) tensors.push_back({kRotaryFactors, GgufType::f32, {static_cast<int64_t>(factors.size())}});
  GgufWriter writer(path, settings, tensors);
  for (size_t i = 0; i < placed.size(); ++i) TensorCopy(files, placed[i]).to(writer, i);
  if (!factors.empty()) writer.write(placed.size(), 0, factors);
  return {model.architecture(), static_cast<int64_t>(tensors.size()), writer.finish(), model.notes()};
}

}  // namespace trainctl
