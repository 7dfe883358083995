// The sizes of well-known language models, as their published configurations state them.
#include "cli/measure/public_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace trainctl {
namespace {

// GPT-2's vocabulary is padded to a multiple of 64. A test compares the sums of the others with published parameter
// counts.
//
//   name, title, layers, width, heads, kv heads, features of a head in queries and keys, and in values, hidden
//   features, vocabulary; whether the feed-forward part is gated; experts, experts per token
constexpr PublicModel kPublicModels[] = {
    {"gpt2-124m", "GPT-2 124M", 12, 768, 12, 12, 64, 64, 3072, 50304, false},
    {"gpt2-1558m", "GPT-2 1558M", 48, 1600, 25, 25, 64, 64, 6400, 50304, false},
    {"smollm2-135m", "SmolLM2 135M", 30, 576, 9, 3, 64, 64, 1536, 49152},
    {"qwen3-0.6b", "Qwen3 0.6B", 28, 1024, 16, 8, 128, 128, 3072, 151936},
    {"llama-1b", "Llama 3.2 1B", 16, 2048, 32, 8, 64, 64, 8192, 128256},
    {"phi-3-mini", "Phi-3 mini 3.8B", 32, 3072, 32, 32, 96, 96, 8192, 32064},
    {"gemma-3-4b", "Gemma 3 4B", 34, 2560, 8, 4, 256, 256, 10240, 262208},
    {"mistral-7b", "Mistral 7B", 32, 4096, 32, 8, 128, 128, 14336, 32768},
    {"olmo-2-7b", "OLMo 2 7B", 32, 4096, 32, 32, 128, 128, 11008, 100352},
    {"llama-8b", "Llama 3.1 8B", 32, 4096, 32, 8, 128, 128, 14336, 128256},
    {"qwen3-8b", "Qwen3 8B", 36, 4096, 32, 8, 128, 128, 12288, 151936},
    {"mistral-small-24b", "Mistral Small 24B", 40, 5120, 32, 8, 128, 128, 32768, 131072},
    {"gemma-3-27b", "Gemma 3 27B", 62, 5376, 32, 16, 128, 128, 21504, 262208},
    {"qwen3-32b", "Qwen3 32B", 64, 5120, 64, 8, 128, 128, 25600, 151936},
    {"llama-70b", "Llama 3.1 70B", 80, 8192, 64, 8, 128, 128, 28672, 128256},
    {"deepseek-v3", "DeepSeek-V3, its dense layers", 61, 7168, 128, 128, 192, 128, 18432, 129280},
    {"mixtral-8x7b", "Mixtral 8x7B", 32, 4096, 32, 8, 128, 128, 14336, 32000, true, 8, 2},
    {"qwen3-30b-a3b", "Qwen3 30B-A3B", 48, 2048, 32, 4, 128, 128, 768, 151936, true, 128, 8},
    {"deepseek-v2-lite", "DeepSeek-V2-Lite, its routed experts", 26, 2048, 16, 16, 192, 128, 1408, 102400, true, 64, 6},
};

class ModelStep {
 public:
  ModelStep(const PublicModel& model, int64_t samples, int64_t length)
      : m_(model), samples_(samples), length_(length), rows_(samples * length) {}

  std::vector<ModelOp> ops() {
    const int64_t queries = m_.heads * m_.key_size, keys = m_.kv_heads * m_.key_size,
                  values = m_.kv_heads * m_.value_size;
    product("q, k, v", m_.width, queries + keys + values, m_.layers);
    product("attention output", m_.heads * m_.value_size, m_.width, m_.layers);
    if (m_.experts > 0) {
      experts();
    } else {
      product(m_.is_gated ? "gate, up" : "up", m_.width, m_.hidden, m_.is_gated ? 2 * m_.layers : m_.layers);
      product("down", m_.hidden, m_.width, m_.layers);
    }
    product("head", m_.width, m_.vocab, 1);
    attention(queries, keys, values);
    norms();
    add("loss", "loss and its gradient", "softmax_cross_entropy_with_grad",
        fmt::format("{}x{},{}", rows_, m_.vocab, rows_), "", 1);
    return std::move(ops_);
  }

 private:
  void add(std::string part, std::string what, std::string op, std::string shapes, std::string attrs, int calls) {
    ops_.push_back({std::move(part), std::move(what), std::move(op), std::move(shapes), std::move(attrs), calls});
  }

  /// y[rows, out] = x[rows, in] W[out, in]^T, and its two gradients.
  void product(const std::string& what, int64_t in, int64_t out, int calls) {
    add("products", what, "matmul", fmt::format("{}x{},{}x{}", rows_, in, out, in), "transpose_b=true", calls);
    add("products", what + ": gradient of the input", "matmul", fmt::format("{}x{},{}x{}", rows_, out, out, in), "",
        calls);
    add("products", what + ": gradient of the weights", "matmul_weight_grad",
        fmt::format("{}x{},{}x{}", rows_, in, rows_, out), "", calls);
  }

  /// All experts of a layer with random routes, on a rank that holds them all.
  void experts() {
    const int64_t parts = m_.is_gated ? 2 : 1, blocks = std::gcd(m_.hidden, int64_t{64}), block = m_.hidden / blocks;
    const int64_t kept = (m_.top_k * parts * block + m_.experts - 1) / m_.experts;
    const std::string x = fmt::format("{}x{}", rows_, m_.width), chosen = fmt::format("{}x{}", rows_, m_.top_k);
    const std::string operands =
        fmt::format("{0},{1},{1},{2}x{3}x{4}x{5},{2}x{5}x{4}", x, chosen, m_.experts, parts, m_.hidden, m_.width);
    const std::string attrs =
        fmt::format("experts={},block={},function={}", m_.experts, block, m_.is_gated ? "swiglu" : "gelu");
    product("router", m_.width, m_.experts, m_.layers);
    add("experts", "experts", "experts", operands, attrs, m_.layers);
    add("experts", "experts: gradient", "experts_grad",
        fmt::format("{},{},{}x{}x{}x{}", x, operands, rows_, m_.experts, blocks, kept), attrs, m_.layers);
  }

  /// Packed q, k and v where their heads have one size, else three inputs.
  void attention(int64_t queries, int64_t keys, int64_t values) {
    const auto of = [&](int64_t features) { return fmt::format("{}x{}x{}", samples_, length_, features); };
    const std::string inputs =
        m_.key_size == m_.value_size ? of(queries + keys + values) : of(queries) + "," + of(keys) + "," + of(values);
    const std::string out = of(m_.heads * m_.value_size), logs = fmt::format("{}x{}x1x{}", samples_, m_.heads, length_);
    const std::string attrs = fmt::format("causal=true,group={},head_dim={}", m_.heads / m_.kv_heads, m_.key_size);
    add("attention", "attention", "attention", inputs, attrs, m_.layers);
    add("attention", "attention: gradient", "attention_grad", out + "," + inputs + "," + out + "," + logs, attrs,
        m_.layers);
  }

  void norms() {
    const std::string x = fmt::format("{}x{}", rows_, m_.width), row = std::to_string(rows_),
                      width = std::to_string(m_.width);
    const int calls = 2 * m_.layers + 1;
    if (m_.is_gated) {
      add("norms", "norm", "rms_norm", x + "," + width, "", calls);
      add("norms", "norm: gradient", "rms_norm_grad", x + "," + x + "," + row + "," + width, "", calls);
    } else {
      add("norms", "norm", "layer_norm", x + "," + width + "," + width, "", calls);
      add("norms", "norm: gradient", "layer_norm_grad", x + "," + x + "," + row + "," + row + "," + width, "", calls);
    }
  }

  const PublicModel& m_;
  const int64_t samples_, length_, rows_;
  std::vector<ModelOp> ops_;
};

}  // namespace

std::span<const PublicModel> public_models() { return kPublicModels; }

const PublicModel* find_public_model(std::string_view name) {
  const auto found = std::find_if(std::begin(kPublicModels), std::end(kPublicModels),
                                  [&](const PublicModel& model) { return model.name == name; });
  return found == std::end(kPublicModels) ? nullptr : found;
}

std::vector<ModelOp> model_ops(const PublicModel& model, int64_t samples, int64_t length) {
  return ModelStep(model, samples, length).ops();
}

}  // namespace trainctl
