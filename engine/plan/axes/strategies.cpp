// Reports every error in a strategy, each with its position and what would be legal.
#include "engine/plan/axes/strategies.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/checked.h"
#include "engine/base/layer_errors.h"
#include "engine/base/text.h"
#include "engine/ops/moe/expert_load.h"
#include "engine/plan/layout.h"
#include "engine/spec/reference_model.h"

namespace trainctl {
namespace {

std::string short_name(const Layer& layer, const Tensor& tensor) {
  const std::string prefix = layer.name + ".";
  return tensor.name.starts_with(prefix) ? tensor.name.substr(prefix.size()) : tensor.name;
}

// Reads one strategy for one layer.
class Reader {
 public:
  Reader(const Graph& graph, LayerId layer, const LayerFacts& facts, const JobSpec& spec, const Mesh& mesh,
         const StrategySpec& strategy, LayerErrors& errors)
      : graph_(graph),
        layer_(graph.layers[layer]),
        facts_(facts),
        spec_(spec),
        mesh_(mesh),
        strategy_(strategy),
        errors_(errors),
        experts_(expert_factor(graph, layer)) {}

  LayerStrategy read() {
    LayerStrategy result{&strategy_, ways()};
    if (is_exchange_) {
      result.exchanged_experts = experts_;
      result.token_factors = token_factors();
    }
    return result;
  }

 private:
  std::vector<int64_t> ways() {
    if (strategy_.cuts.size() > layer_.inputs.size()) {
      fail({},
           fmt::format("{} entries, but {} has {} inputs: {}", strategy_.cuts.size(), subject(), layer_.inputs.size(),
                       inputs_text()),
           "give one list of cuts per input, in this order; trailing lists may be omitted");
      return {};
    }
    const bool hybrid = spec_.parallel.mode == ParallelMode::hybrid_parallel;
    for (size_t i = 0; i < strategy_.cuts.size(); ++i) hybrid ? read_hybrid_input(i) : read_input(i);
    if (failed_ || hybrid) return {};
    check_product();
    std::vector<int64_t> ways;
    for (const Given& given : given_) ways.push_back(given.ways);
    return ways;
  }

  struct Given {
    int64_t ways = 1;
    bool said = false;
    size_t input = 0, dim = 0;  // input and dim at which the strategy first cuts this factor
  };

  void read_input(size_t i) {
    given_.resize(layer_.factors.size());
    const Shape& shape = graph_.tensors[layer_.inputs[i]].shape;
    const Ints& cuts = strategy_.cuts[i];
    if (!right_length(i)) return;
    for (size_t d = 0; d < cuts.size(); ++d) {
      const int factor = cut_factor(layer_.input_rules[i][d], layer_.factors);
      const bool fine = legal_number(i, d) && divides(i, d, shape[d]) && may_cut(i, d, factor);
      if (fine && factor >= 0) agree(i, d, factor);
    }
  }

  // Reads the cuts of input i in hybrid_parallel. There a parameter has the size of one shard, and the cuts multiply
  // this size, so any number of shards is possible.
  void read_hybrid_input(size_t i) {
    if (!right_length(i)) return;
    const bool parameter = graph_.tensors[layer_.inputs[i]].kind == TensorKind::parameter;
    int64_t product = 1;
    for (size_t d = 0; d < strategy_.cuts[i].size(); ++d) {
      if (!legal_number(i, d)) return;
      const int64_t cut = strategy_.cuts[i][d];
      product = capped_product(product, cut);
      if (cut == 1 || parameter) continue;
      fail(
          at(i, d),
          fmt::format("{} is cut {} ways, but in hybrid_parallel a strategy cuts only parameters", dim_text(i, d), cut),
          "write 1 here: the shapes of the network are already those of one rank");
    }
    if (mesh_.size() % product != 0) {
      fail(at(i),
           fmt::format("{} is cut {} ways in total, but a stage has {}", input_text(i), product,
                       plural(mesh_.size(), "rank")),
           "the product of the cuts must divide the number of ranks per stage");
    }
  }

  bool right_length(size_t i) {
    const size_t ndim = graph_.tensors[layer_.inputs[i]].shape.size();
    if (strategy_.cuts[i].size() == ndim) return true;
    fail(at(i), fmt::format("{} cuts for {}, which has {} dims", strategy_.cuts[i].size(), input_text(i), ndim),
         fmt::format("give one number per dim; {} cuts nothing", format_list(Ints(ndim, 1))));
    return false;
  }

  bool legal_number(size_t i, size_t d) {
    const int64_t cut = strategy_.cuts[i][d];
    if (cut < 1) {
      fail(at(i, d), fmt::format("{} is cut {} ways", dim_text(i, d), cut),
           "use a number of at least 1; 1 does not "
           "cut the dim");
      return false;
    }
    return true;
  }

  /// Checks that the cut of dim d of input i divides both the size of the dim and the number of ranks. Reports an error
  /// and returns false if not.
  bool divides(size_t i, size_t d, int64_t size) {
    const int64_t cut = strategy_.cuts[i][d];
    if (size % cut != 0) {
      fail(at(i, d), fmt::format("{} is cut {} ways, but {} is not divisible by {}", dim_text(i, d), cut, size, cut),
           legal_cuts(size));
      return false;
    }
    if (mesh_.size() % cut != 0) {
      fail(at(i, d),
           fmt::format("{} is cut {} ways, but {} has {}, which {} does not divide", dim_text(i, d), cut,
                       spec_.parallel.stages > 1 ? "a stage" : "the job", plural(mesh_.size(), "rank"), cut),
           legal_cuts(size));
      return false;
    }
    return true;
  }

  /// Checks that the factor that dim d of input i cuts may be cut in this number of ways. Reports an error and returns
  /// false if not.
  bool may_cut(size_t i, size_t d, int factor) {
    const int64_t cut = strategy_.cuts[i][d];
    if (cut == 1) return true;
    const std::string why_not = factor < 0 ? "its size is 1" : facts_.why_not[factor];
    if (why_not.empty() && layer_.factors[factor].size % cut == 0) return true;
    if (why_not.empty()) {
      const auto& [name, major, cuttable, why, why_size] = layer_.factors[factor];
      const std::string size = why_size.empty() ? fmt::format("its major part is {}", major) : why_size;
      fail(at(i, d),
           fmt::format("{} is cut {} ways, but {}, which is not divisible by {}", dim_text(i, d), cut, size, cut),
           legal_cuts(major));
    } else {
      fail(at(i, d), fmt::format("{} is cut {} ways, but it cannot be cut: {}", dim_text(i, d), cut, why_not),
           "legal cuts of this dim: 1");
    }
    return false;
  }

  // Checks that a factor that several inputs have is cut the same number of ways in all of them.
  void agree(size_t i, size_t d, int factor) {
    Given& given = given_[factor];
    const int64_t cut = strategy_.cuts[i][d];
    if (!given.said) {
      given = {cut, true, i, d};
    } else if (given.ways != cut) {
      fail(at(i, d),
           fmt::format("{} is {}, but {}, which runs over the same index, is {}", dim_text(i, d), cut_text(cut),
                       dim_text(given.input, given.dim), cut_text(given.ways)),
           fmt::format("write {} here, or {} there", given.ways, cut));
    }
  }

  /// Checks that the number of ranks is divisible by the product of the cuts of all factors.
  void check_product() {
    given_.resize(layer_.factors.size());
    int64_t product = 1;
    std::string text;
    for (const Given& given : given_) {
      product = capped_product(product, given.ways);
      if (given.ways > 1) text += (text.empty() ? "" : " x ") + std::to_string(given.ways);
    }
    if (mesh_.size() % product == 0 || exchanges_tokens()) return;
    if (product < kCapped) text += fmt::format(" = {}", product);
    fail({},
         fmt::format("{} is cut {} ways in total, but {} has {}", subject(), text,
                     spec_.parallel.stages > 1 ? "a stage" : "the job", plural(mesh_.size(), "rank")),
         "the product of the cuts must divide the number of ranks per stage");
  }

  /// Factors of the layer's tokens, major first: the dims of its input but the features.
  std::vector<int> token_factors() const {
    std::vector<int> factors;
    for (size_t d = 0; d + 1 < layer_.input_rules[0].size(); ++d)
      if (const int f = cut_factor(layer_.input_rules[0][d], layer_.factors); f >= 0) factors.push_back(f);
    return factors;
  }

  /// Returns true if the ranks that share the experts are among the ranks that share the tokens. Each token is then
  /// sent to the ranks of its experts.
  bool exchanges_tokens() {
    if (experts_ < 0 || spec_.parallel.expert_method == ExpertMethod::gather ||
        spec_.parallel.mode != ParallelMode::semi_auto_parallel)
      return false;
    int64_t others = 1, tokens = 1;
    for (size_t f = 0; f < given_.size(); ++f)
      if (static_cast<int>(f) != experts_) others = capped_product(others, given_[f].ways);
    for (const int f : token_factors()) tokens *= given_[static_cast<size_t>(f)].ways;
    is_exchange_ = mesh_.size() % others == 0 && tokens % given_[static_cast<size_t>(experts_)].ways == 0;
    return is_exchange_;
  }

  std::string legal_cuts(int64_t size) const {
    std::vector<std::string> legal;
    for (int64_t cut = 1; cut <= mesh_.size(); ++cut) {
      if (mesh_.size() % cut == 0 && size % cut == 0) legal.push_back(std::to_string(cut));
    }
    return "legal cuts of this dim: " + join(legal);
  }

  std::string input_text(size_t i) const {
    const Tensor& tensor = graph_.tensors[layer_.inputs[i]];
    // The layers of a pattern read tensors of different names, but get one error message. So it names inputs by number.
    const bool by_number = !for_one_layer() && tensor.kind != TensorKind::parameter;
    return (by_number ? fmt::format("input {}", i) : short_name(layer_, tensor)) + " " + to_string(tensor.shape);
  }
  std::string dim_text(size_t i, size_t d) const { return fmt::format("dim {} of {}", d, input_text(i)); }
  std::string inputs_text() const {
    std::vector<std::string> words;
    for (size_t i = 0; i < layer_.inputs.size(); ++i) words.push_back(input_text(i));
    return join(words);
  }
  bool for_one_layer() const { return strategy_.pattern == layer_.name; }
  /// The subject of an error message. A message about a pattern names its layers at the beginning.
  std::string subject() const { return for_one_layer() ? layer_.name : "it"; }
  static std::string at(size_t i) { return fmt::format("[{}]", i); }
  static std::string at(size_t i, size_t d) { return fmt::format("[{}][{}]", i, d); }

  void fail(const std::string& where, std::string message, std::string hint) {
    failed_ = true;
    Diagnostic error{spec_.position(strategy_.path + where), strategy_.path, std::move(message), std::move(hint)};
    if (for_one_layer())
      errors_.add(std::move(error));
    else
      errors_.add(std::move(error), layer_.name);
  }

  const Graph& graph_;
  const Layer& layer_;
  const LayerFacts& facts_;
  const JobSpec& spec_;
  const Mesh& mesh_;
  const StrategySpec& strategy_;
  LayerErrors& errors_;
  const int experts_;         ///< the factor of the layer's experts; -1: it has none
  bool is_exchange_ = false;  ///< LayerStrategy::exchanged_experts
  bool failed_ = false;
  std::vector<Given> given_;
};

}  // namespace

std::vector<int64_t> LayerStrategy::own_ways() const {
  std::vector<int64_t> ways = factor_ways;
  if (exchanged_experts >= 0) ways[static_cast<size_t>(exchanged_experts)] = 1;
  return ways;
}

std::vector<Axes> LayerStrategy::with_exchange(const Mesh& mesh, std::vector<Axes> given) const {
  if (exchanged_experts < 0) return given;
  Axes of_tokens;
  for (const int f : token_factors)
    of_tokens.insert(of_tokens.end(), given[static_cast<size_t>(f)].begin(), given[static_cast<size_t>(f)].end());
  Axes& experts = given[static_cast<size_t>(exchanged_experts)];
  int64_t left = factor_ways[static_cast<size_t>(exchanged_experts)];
  for (size_t a = of_tokens.size(); a-- > 0 && left > 1;) {
    if (left % mesh.axis_size(of_tokens[a]) != 0) continue;
    left /= mesh.axis_size(of_tokens[a]);
    experts.insert(experts.begin(), of_tokens[a]);
  }
  check(left == 1, "the ways to cut experts divide those to cut their tokens");
  return given;
}

static bool has_layer(const Graph& graph, const std::string& name) {
  return std::any_of(graph.layers.begin(), graph.layers.end(), [&](const Layer& layer) { return layer.name == name; });
}

std::vector<std::optional<LayerStrategy>> read_strategies(const Graph& graph, const std::vector<LayerFacts>& facts,
                                                          const JobSpec& spec, const Mesh& mesh,
                                                          std::vector<Diagnostic>& errors) {
  std::vector<std::optional<LayerStrategy>> strategies(graph.layers.size());
  LayerErrors of_layers;
  for (LayerId l = 0; l < static_cast<LayerId>(graph.layers.size()); ++l) {
    const StrategySpec* strategy =
        rule_for(spec.parallel.strategies, layer_in_job(graph.layers[l].name), facts[l].is_loss);
    if (strategy == nullptr) continue;
    strategies[l] = Reader(graph, l, facts[l], spec, mesh, *strategy, of_layers).read();
  }
  for (Diagnostic& error : of_layers.take()) errors.push_back(std::move(error));
  const auto demand_layer_of_loss = [&](const std::string& section, const std::string& pattern) {
    if (!pattern.starts_with("loss.") || has_layer(graph, pattern)) return;
    const std::string path = section + pattern;
    errors.push_back(
        {spec.position(path), path, "the loss has no layer '" + pattern + "'", "trainctl show graph lists the layers"});
  };
  for (const StrategySpec& strategy : spec.parallel.strategies)
    demand_layer_of_loss("parallel.strategies.", strategy.pattern);
  for (const StageRule& rule : spec.parallel.stage_config) demand_layer_of_loss("parallel.stage_config.", rule.pattern);
  return strategies;
}

}  // namespace trainctl
