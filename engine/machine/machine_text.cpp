// A machine as JSON, as `trainctl calibrate` writes it; docs/machines.md lists the fields.
#include "engine/machine/machine_text.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

/// One object of the file. Its numbers are finite and not negative.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw EnvError(where_ + ": expected an object {…}");
  }

  double number(const char* name) const {
    const Json& value = at(name);
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0)
      throw EnvError(where_ + "." + name + ": expected a number of at least 0");
    return value.get<double>();
  }
  double positive(const char* name) const {
    const double value = number(name);
    if (value == 0) throw EnvError(where_ + "." + name + ": must be above 0");
    return value;
  }
  int count(const char* name) const {
    const double value = number(name);
    if (value != std::floor(value) || value > 1e6)
      throw EnvError(where_ + "." + name + ": expected a number of devices");
    return static_cast<int>(value);
  }
  std::string text(const char* name) const {
    if (!at(name).is_string()) throw EnvError(where_ + "." + name + ": expected text");
    return at(name).get<std::string>();
  }
  bool flag(const char* name) const {
    if (!at(name).is_boolean()) throw EnvError(where_ + "." + name + ": expected true or false");
    return at(name).get<bool>();
  }
  Fields object(const char* name) const { return {at(name), where_ + "." + name}; }
  const Json& list(const char* name) const {
    if (!at(name).is_array()) throw EnvError(where_ + "." + name + ": expected a list […]");
    return at(name);
  }
  const Json& json() const { return object_; }
  const std::string& where() const { return where_; }

 private:
  const Json& at(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) throw EnvError(where_ + " has no field '" + name + "'");
    return *found;
  }

  const Json& object_;
  std::string where_;
};

std::vector<LinkLevel> links_of(const Fields& machine) {
  std::vector<LinkLevel> links;
  for (const Json& item : machine.list("links")) {
    const Fields link(item, machine.where() + ".links[" + std::to_string(links.size()) + "]");
    links.push_back({link.text("name"),
                     link.count("devices"),
                     {link.positive("bytes_per_second")},
                     {link.number("latency_seconds")}});
  }
  if (links.empty() || links.back().devices != 0)
    throw EnvError(machine.where() + ".links: the last one must connect any number of devices: devices: 0");
  for (size_t i = 0; i + 1 < links.size(); ++i) {
    const int outer = links[i + 1].devices;
    if (links[i].devices < 1 || (outer != 0 && (outer <= links[i].devices || outer % links[i].devices != 0)))
      throw EnvError(machine.where() + ".links: each must connect a multiple of the devices of the previous one");
  }
  return links;
}

KernelModel model_of(const Fields& kernels, const char* key) {
  std::vector<KernelSample> samples;
  for (const Json& item : kernels.list(key)) {
    const Fields sample(item, kernels.where() + "." + key + "[" + std::to_string(samples.size()) + "]");
    KernelSample& read = samples.emplace_back();
    for (const Json& size : sample.list("sizes")) {
      if (!size.is_number()) throw EnvError(sample.where() + ".sizes: expected numbers");
      read.sizes.push_back(size.get<double>());
    }
    if (read.sizes.size() != samples.front().sizes.size())
      throw EnvError(sample.where() + ".sizes: expected as many numbers as in the first sample");
    read.cost = {.flops = sample.number("flops"), .bytes = sample.number("bytes")};
    read.seconds = {sample.positive("seconds")};
    if (item.contains("attrs")) read.attrs = sample.text("attrs");
    if (item.contains("in_step")) read.in_step = sample.positive("in_step");
  }
  if (samples.empty()) throw EnvError(kernels.where() + "." + key + ": has no sample");
  return KernelModel(std::move(samples));
}

KernelSamples models_of(const Fields& fields) {
  KernelSamples models;
  for (const auto& [key, samples] : fields.json().items()) models.emplace(key, model_of(fields, key.c_str()));
  return models;
}

CallDelays delays_of(const Fields& machine) {
  if (!machine.json().contains("call_delay_seconds")) return {};
  const Fields delays = machine.object("call_delay_seconds");
  return {.exposed = {delays.number("exposed")}, .beside = {delays.number("beside")}};
}

Json json_of(const KernelModel& model) {
  Json samples = Json::array();
  for (const KernelSample& sample : model.samples()) {
    Json& json = samples.emplace_back(Json{{"sizes", sample.sizes},
                                           {"flops", sample.cost.flops},
                                           {"bytes", sample.cost.bytes},
                                           {"seconds", sample.seconds.value}});
    if (!sample.attrs.empty()) json["attrs"] = sample.attrs;
    if (sample.in_step != 1) json["in_step"] = sample.in_step;
  }
  return samples;
}

Json json_of(const KernelSamples& models) {
  Json json = Json::object();
  for (const auto& [key, model] : models) json[key] = json_of(model);
  return json;
}

std::vector<StepSample> steps_of(const Fields& machine) {
  std::vector<StepSample> steps;
  if (!machine.json().contains("steps")) return steps;
  for (const Json& item : machine.list("steps")) {
    const Fields step(item, machine.where() + ".steps[" + std::to_string(steps.size()) + "]");
    steps.push_back({step.text("job"),
                     step.count("kernels"),
                     {step.positive("alone_seconds")},
                     {step.positive("seconds")},
                     {step.number("product_seconds")}});
  }
  return steps;
}

Json json_of(const std::vector<StepSample>& steps) {
  Json json = Json::array();
  for (const StepSample& step : steps)
    json.push_back({{"job", step.job},
                    {"kernels", step.kernels},
                    {"alone_seconds", step.alone.value},
                    {"product_seconds", step.products.value},
                    {"seconds", step.measured.value}});
  return json;
}

}  // namespace

std::string to_json(const Machine& machine) {
  Json links = Json::array();
  for (const LinkLevel& link : machine.links)
    links.push_back({{"name", link.name},
                     {"devices", link.devices},
                     {"bytes_per_second", link.bandwidth.value},
                     {"latency_seconds", link.latency.value}});
  const Json json = {
      {"name", machine.name},
      {"source", machine.source},
      {"kind", machine.kind == DeviceKind::cuda ? "cuda" : "cpu"},
      {"devices", machine.devices},
      {"memory_bytes", machine.memory.value},
      {"reserved_bytes", machine.reserved.value},
      {"collectives_bytes", machine.for_collectives.value},
      {"messages_bytes", machine.for_messages.value},
      {"flops_per_second",
       {{"fp32", machine.products.fp32.value},
        {"tf32", machine.products.tf32.value},
        {"bf16", machine.products.bf16.value}}},
      {"memory_bytes_per_second", machine.memory_rate.value},
      {"multiprocessors", machine.multiprocessors},
      {"exponentials_per_second", machine.exponentials_per_second},
      {"launch_seconds", machine.launch.value},
      {"overlaps", machine.overlaps},
      {"overlap_cost", machine.overlap_cost},
      {"wait_cost", machine.wait_cost},
      {"call_delay_seconds", {{"exposed", machine.delays.exposed.value}, {"beside", machine.delays.beside.value}}},
      {"links", std::move(links)},
      {"kernels", json_of(machine.kernels)},
      {"calls", json_of(machine.calls)},
      {"steps", json_of(machine.steps)}};
  return json.dump(1) + "\n";
}

Machine machine_of_json(const std::string& text, const std::string& where) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) throw EnvError(where + ": not valid JSON");
  const Fields fields(json, where);
  Machine m;
  m.name = fields.text("name");
  m.source = fields.text("source");
  const std::string kind = fields.text("kind");
  if (kind != "cpu" && kind != "cuda") throw EnvError(where + ".kind: expected cpu or cuda");
  m.kind = kind == "cuda" ? DeviceKind::cuda : DeviceKind::cpu;
  m.devices = fields.count("devices");
  m.memory = {fields.number("memory_bytes")};
  m.reserved = {fields.number("reserved_bytes")};
  if (json.contains("collectives_bytes")) m.for_collectives = {fields.number("collectives_bytes")};
  if (json.contains("messages_bytes")) m.for_messages = {fields.number("messages_bytes")};
  const Fields products = fields.object("flops_per_second");
  m.products = {{products.positive("fp32")}, {products.positive("tf32")}, {products.positive("bf16")}};
  m.memory_rate = {fields.positive("memory_bytes_per_second")};
  if (json.contains("multiprocessors")) m.multiprocessors = fields.count("multiprocessors");
  if (json.contains("exponentials_per_second")) m.exponentials_per_second = fields.number("exponentials_per_second");
  m.launch = {fields.number("launch_seconds")};
  m.overlaps = fields.flag("overlaps");
  m.overlap_cost = fields.number("overlap_cost");
  if (m.overlap_cost < 1)
    throw EnvError(where +
                   ".overlap_cost: must be at least 1, because a concurrent transfer "
                   "never makes kernels faster");
  if (json.contains("wait_cost")) m.wait_cost = fields.number("wait_cost");
  if (m.wait_cost < 1)
    throw EnvError(where +
                   ".wait_cost: must be at least 1, because a waiting transfer never "
                   "makes kernels faster");
  m.delays = delays_of(fields);
  m.links = links_of(fields);
  m.kernels = models_of(fields.object("kernels"));
  m.calls = models_of(fields.object("calls"));
  m.steps = steps_of(fields);
  return m;
}

}  // namespace trainctl
