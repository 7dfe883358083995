// The output of `trainctl bench`: tables, or the same as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/measure/collective_bench.h"
#include "cli/measure/data_bench.h"
#include "cli/measure/model_bench.h"
#include "cli/measure/op_bench.h"

namespace trainctl {

std::string render_ops(const std::vector<OpResult>& results, const std::string& device);
nlohmann::ordered_json ops_json(const std::vector<OpResult>& results, const std::string& device);

std::string render_collectives(const std::vector<CollectiveResult>& results, Device device);
nlohmann::ordered_json collectives_json(const std::vector<CollectiveResult>& results, Device device);

/// `cores`: cores of the machine, for the limit.
std::string render_data(const DataBench& bench, int cores);
nlohmann::ordered_json data_json(const DataBench& bench);

/// A table per model; the kernels that take longest beyond their limits first.
std::string render_models(const std::vector<ModelResult>& results, const std::string& device);
nlohmann::ordered_json models_json(const std::vector<ModelResult>& results, const std::string& device);
/// The models that `trainctl bench model` knows, with their sizes.
std::string render_model_list();

/// The ops that can be timed, with their descriptions and their shapes if --shape is not given.
std::string render_op_list();

}  // namespace trainctl
