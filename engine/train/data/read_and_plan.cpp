// Plans a job from its files: the headers of its data sets and the description of its machine.
#include "engine/train/data/read_and_plan.h"

#include <utility>

#include "engine/planning/machine_file.h"
#include "engine/planning/plan_generation.h"
#include "engine/spec/error_positions.h"
#include "engine/train/data/dataset.h"

namespace trainctl {

PlannedJob plan_job(JobSpec spec) {
  PlanInputs inputs;
  try {
    inputs.machine = machine_of(spec.launch);
    inputs.training = read_data_header(spec.dataset, spec.seed);
  } catch (const SpecError& error) {
    throw with_positions(error, spec);
  }
  if (spec.validation) {
    try {
      inputs.validation = read_data_header(spec.validation_set(), spec.seed);
    } catch (const SpecError& error) {
      throw with_validation_positions(error, spec);
    }
  }
  return plan_job(std::move(spec), std::move(inputs));
}

PlannedJob plan_generation(JobSpec spec, const GenerationSize& size) {
  std::shared_ptr<const Machine> machine;
  try {
    machine = machine_of(spec.launch);
  } catch (const SpecError& error) {
    throw with_positions(error, spec);
  }
  return plan_generation(std::move(spec), size, std::move(machine));
}

}  // namespace trainctl
