// The output of `trainctl bench`: tables, or the same as JSON.
#include "cli/render/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/text/profile_report.h"
#include "cli/text/table.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAcross = "  link limit: one-way transfer to the next GPU while all other links are in use";
constexpr const char* kInHost = "  copy limit: copy within a rank's memory while all other ranks copy too";

std::string spread_text(const Spread& spread) {
  return duration_text(spread.low) + " .. " + duration_text(spread.high);
}

/// Formats with about three significant digits.
std::string figure(double value) { return value <= 0 ? "" : fmt::format("{:.{}f}", value, value < 10 ? 2 : 1); }

std::string type_text(const BenchType& type) { return type.tf32 ? "tf32" : std::string(to_string(type.dtype)); }

Json spread_json(const Spread& spread) {
  return {{"median", spread.median}, {"p10", spread.low}, {"p90", spread.high}};
}

std::string limits_text(const std::vector<OpResult>& results) {
  std::map<std::string, double> peaks;
  double memory = 0;
  for (const OpResult& result : results) {
    memory = std::max(memory, result.memory_bytes);
    if (result.peak_flops > 0) peaks[type_text(result.request.type)] = result.peak_flops;
  }
  std::vector<std::string> words;
  for (const auto& [type, flops] : peaks) {
    words.push_back(flops >= 1e12 ? fmt::format("{} matrix product {:.1f} TFLOP/s", type, flops / 1e12)
                                  : fmt::format("{} matrix product {:.1f} GFLOP/s", type, flops / 1e9));
  }
  if (memory > 0) words.push_back(fmt::format("memory {:.1f} GB/s, reads and writes", memory / 1e9));
  return join(words, "; ");
}

/// The attributes that differ from the example's.
std::string attrs_text(const OpRequest& request) {
  const Attrs& usual = request.example.attrs;
  Attrs own;
  for (const auto& item : request.attrs) {
    if (std::find(usual.begin(), usual.end(), item) == usual.end()) own.set(item.first, item.second);
  }
  return own.empty() ? "" : to_string(own);
}

/// Seconds per step beyond what the limits allow.
double excess(const ModelOpResult& op) { return op.result ? op.seconds() * (1 - op.result->of_limit()) : 0; }

/// A table of the kernels of a model, the one that loses the most time first.
std::string model_text(const ModelResult& model) {
  std::vector<const ModelOpResult*> ops;
  for (const ModelOpResult& op : model.ops) ops.push_back(&op);
  std::stable_sort(ops.begin(), ops.end(), [](const auto* a, const auto* b) { return excess(*a) > excess(*b); });
  const bool tera =
      std::any_of(ops.begin(), ops.end(), [](const auto* op) { return op->result && op->result->peak_flops >= 1e12; });
  Table table({"part", "kernel", ">calls", ">time", ">per step", ">share", tera ? ">TFLOP/s" : ">GFLOP/s", ">GB/s",
               ">of limit", ""});
  for (const ModelOpResult* op : ops) {
    if (!op->result) {
      table.add_short({op->op.part, op->op.what, std::to_string(op->op.calls), "not measured: " + op->why_not});
      continue;
    }
    const OpResult& r = *op->result;
    const double part = r.of_limit();
    table.add({op->op.part, op->op.what, std::to_string(op->op.calls), duration_text(r.seconds.median),
               duration_text(op->seconds()), fmt::format("{:.1f}%", 100 * op->seconds() / model.seconds()),
               r.work.flops > 0 ? figure(r.flops_per_second() / (tera ? 1e12 : 1e9)) : "",
               figure(r.bytes_per_second() / 1e9), part > 0 ? fmt::format("{:.0f}%", 100 * part) : "",
               part > 0 && part < kGoodShare ? "slow" : ""});
  }
  return fmt::format("{}: {} x {} tokens, {} per step in these kernels\n{}", model.model->title, model.samples,
                     with_commas(model.length), duration_text(model.seconds()), table.str());
}

}  // namespace

std::string render_ops(const std::vector<OpResult>& results, const std::string& device) {
  if (results.empty()) return "";
  const bool tera = std::any_of(results.begin(), results.end(), [](const OpResult& r) { return r.peak_flops >= 1e12; });
  Table table(
      {"op", "inputs", "type", ">time", ">p10 .. p90", tera ? ">TFLOP/s" : ">GFLOP/s", ">GB/s", ">of limit", "attrs"});
  for (const OpResult& r : results) {
    const double part = r.of_limit();
    table.add({r.request.name(), shapes_text(r.request.inputs), type_text(r.request.type),
               duration_text(r.seconds.median), spread_text(r.seconds),
               r.work.flops > 0 ? figure(r.flops_per_second() / (tera ? 1e12 : 1e9)) : "",
               figure(r.bytes_per_second() / 1e9), part > 0 ? fmt::format("{:.0f}%", 100 * part) : "",
               attrs_text(r.request)});
  }
  return fmt::format("{}\nlimits measured in this run: {}\n\n{}", device, limits_text(results), table.str());
}

Json op_json(const OpResult& r) {
  Json shapes = Json::array(), attrs = Json::object();
  for (const TensorInfo& input : r.request.inputs) shapes.push_back(input.shape);
  for (const auto& [name, value] : r.request.attrs) attrs[name] = to_string(value);
  return {{"op", r.request.name()},
          {"inputs", shapes},
          {"type", type_text(r.request.type)},
          {"attrs", attrs},
          {"seconds", spread_json(r.seconds)},
          {"operand_sets", r.copies},
          {"flops", r.work.flops},
          {"bytes", r.work.bytes},
          {"flops_per_second", r.flops_per_second()},
          {"bytes_per_second", r.bytes_per_second()},
          {"of_limit", r.of_limit()},
          {"limits", {{"flops_per_second", r.peak_flops}, {"bytes_per_second", r.memory_bytes}}}};
}

Json ops_json(const std::vector<OpResult>& results, const std::string& device) {
  Json list = Json::array();
  for (const OpResult& r : results) list.push_back(op_json(r));
  return {{"device", device}, {"results", list}};
}

std::string render_models(const std::vector<ModelResult>& results, const std::string& device) {
  if (results.empty()) return "";
  std::vector<OpResult> measured;
  for (const ModelResult& model : results)
    for (const ModelOpResult& op : model.ops)
      if (op.result) measured.push_back(*op.result);
  std::string text = fmt::format("{}\nlimits measured in this run: {}\n", device, limits_text(measured));
  for (const ModelResult& model : results) text += "\n" + model_text(model);
  return text;
}

Json models_json(const std::vector<ModelResult>& results, const std::string& device) {
  Json list = Json::array();
  for (const ModelResult& model : results) {
    Json ops = Json::array();
    for (const ModelOpResult& op : model.ops) {
      Json row = op.result ? op_json(*op.result) : Json{{"op", op.op.op}, {"why_not", op.why_not}};
      row["part"] = op.op.part;
      row["what"] = op.op.what;
      row["calls"] = op.op.calls;
      ops.push_back(std::move(row));
    }
    list.push_back({{"model", model.model->name},
                    {"samples", model.samples},
                    {"length", model.length},
                    {"seconds", model.seconds()},
                    {"ops", std::move(ops)}});
  }
  return {{"device", device}, {"results", list}};
}

std::string render_model_list() {
  Table table({"model", "", ">layers", ">width", ">heads", ">kv heads", ">head size", ">hidden", ">experts", ">vocab"});
  for (const PublicModel& m : public_models()) {
    const std::string size =
        m.key_size == m.value_size ? std::to_string(m.key_size) : fmt::format("{} / {}", m.key_size, m.value_size);
    const std::string experts = m.experts == 0 ? "" : fmt::format("{} of {}", m.top_k, m.experts);
    table.add({std::string(m.name), std::string(m.title), std::to_string(m.layers), with_commas(m.width),
               std::to_string(m.heads), std::to_string(m.kv_heads), size, with_commas(m.hidden), experts,
               with_commas(m.vocab)});
  }
  return table.str();
}

std::string render_collectives(const std::vector<CollectiveResult>& results, Device device) {
  if (results.empty()) return "";
  const bool cuda = device == Device::cuda;
  Table table({"collective", "by", ">ranks", ">bytes", ">time", ">p10 .. p90", ">GB/s", ">bus GB/s",
               cuda ? ">link GB/s" : ">copy GB/s", ">of limit", ">wrong"});
  for (const CollectiveResult& r : results) {
    table.add({std::string(to_string(r.kind)), r.made_by, std::to_string(r.ranks), with_commas(r.bytes),
               duration_text(r.seconds.median), spread_text(r.seconds), figure(r.rate() / 1e9),
               figure(r.bus_rate() / 1e9), figure(r.copy_rate / 1e9),
               fmt::format("{:.0f}%", 100 * r.bus_rate() / r.copy_rate), std::to_string(r.wrong)});
  }
  return fmt::format("f32, {}\n{}\n\n{}", plural(results[0].ranks, "rank"), cuda ? kAcross : kInHost, table.str());
}

Json collectives_json(const std::vector<CollectiveResult>& results, Device device) {
  Json list = Json::array();
  for (const CollectiveResult& r : results) {
    list.push_back({{"collective", to_string(r.kind)},
                    {"by", r.made_by},
                    {"ranks", r.ranks},
                    {"bytes", r.bytes},
                    {"seconds", spread_json(r.seconds)},
                    {"bytes_per_second", r.rate()},
                    {"bus_bytes_per_second", r.bus_rate()},
                    {"limit_bytes_per_second", r.copy_rate},
                    {"wrong_elements", r.wrong}});
  }
  return {{"device", device == Device::cuda ? "cuda" : "cpu"}, {"results", list}};
}

std::string render_data(const DataBench& bench, int cores) {
  std::vector<std::string> headers = {">workers", ">samples/s", ">per worker", ">of limit"};
  for (size_t i = 0; i < kReadStages; ++i) headers.push_back(">" + std::string(to_string(static_cast<ReadStage>(i))));
  Table table(headers);
  const double alone = bench.rows.front().rate();
  for (const DataBenchRow& row : bench.rows) {
    const double limit = alone * std::min(row.workers, cores);
    std::vector<std::string> cells = {std::to_string(row.workers), fmt::format("{:.1f}", row.rate()),
                                      fmt::format("{:.1f}", row.rate() / row.workers),
                                      fmt::format("{:.0f} %", 100 * row.rate() / limit)};
    for (size_t i = 0; i < kReadStages; ++i)
      cells.push_back(duration_text(row.stages.of[i] / static_cast<double>(row.samples)));
    table.add(cells);
  }
  const StageSeconds& stages = bench.rows.back().stages;
  const ReadStage slowest = stages.slowest();
  return fmt::format("{} samples of {}\n{}", with_commas(bench.samples), bench.fields, table.str()) +
         fmt::format("bottleneck: {}, {:.0f} % of the workers' time\n", to_string(slowest),
                     100 * stages[slowest] / stages.sum()) +
         fmt::format("limit: {} workers (one per core), each as fast as a single worker\n", cores);
}

Json data_json(const DataBench& bench) {
  Json rows = Json::array();
  for (const DataBenchRow& row : bench.rows) {
    Json stages;
    for (size_t i = 0; i < kReadStages; ++i)
      stages[std::string(to_string(static_cast<ReadStage>(i)))] = row.stages.of[i] / static_cast<double>(row.samples);
    rows.push_back({{"workers", row.workers}, {"samples_per_second", row.rate()}, {"seconds_per_sample", stages}});
  }
  return {{"samples", bench.samples}, {"fields", bench.fields}, {"rows", rows}};
}

std::string render_op_list() {
  Table table({"op", "description", "default shapes", "attrs"});
  for (const KernelDef* kernel : all_kernels()) {
    const KernelExample example = example_of(*kernel);
    std::vector<TensorInfo> inputs;
    for (const KernelExample::Input& input : example.inputs) inputs.push_back({input.shape});
    std::vector<std::string> attrs;
    for (const auto& [name, value] : example.attrs) attrs.push_back(name + "=" + to_string(value));
    for (const auto& [name, value] : example.optional) attrs.push_back("[" + name + "]");
    std::string words = join(attrs, ",");
    words.erase(std::remove(words.begin(), words.end(), ' '), words.end());
    table.add({kernel->name, example.what, shapes_text(inputs), words});
  }
  return table.str();
}

}  // namespace trainctl
