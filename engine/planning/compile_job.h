// Compiles a planned job with compile, compile_all and compile_classes of engine/compile, into programs with all fields
// of Memory set except Memory::validation, which make_room_for sets.
#pragma once

#include <vector>

#include "engine/planning/planned_job.h"

namespace trainctl {

Program compile(const PlannedJob& job, int rank);
std::vector<Program> compile_all(const PlannedJob& job);
RankClasses compile_classes(const PlannedJob& job);
/// The same as compile_classes, without verification.
RankClasses compile_unverified(const PlannedJob& job);
/// Compiles one rank of each stage, for comparisons of plans (engine/compile/one_per_stage.h). The result is not
/// verified.
RankClasses compile_one_per_stage(const PlannedJob& job);
/// The most memory that one of the programs needs.
int64_t most_memory(const RankClasses& classes);

/// Memory limit of a rank, whatever its plan; 0: no limit is known.
int64_t memory_limit(const PlannedJob& job);

/// The program that evaluates the job's validation set. `beside_training`: its arena is that of the training program.
Program compile_validation(const PlannedJob& job, int rank, bool beside_training = true);
RankClasses compile_validation_classes(const PlannedJob& job, bool beside_training = true);

/// True if validations use an average of the weights.
bool validates_averages(const PlannedJob& job);
/// The program that swaps the weights with their averages before a validation, and swaps them back after it. Its arena
/// is that of the training program.
Program compile_exchange(const PlannedJob& job, int rank);
RankClasses compile_exchange_classes(const PlannedJob& job);

/// With parallel.local_steps: the program that updates the weights of all replicas, after every local_steps steps. Its
/// arena is that of the training program.
Program compile_synchronization(const PlannedJob& job, int rank);
RankClasses compile_synchronization_classes(const PlannedJob& job);

/// The bytes that a validation needs beyond the memory of the training program with which it shares an arena
/// (Memory::validation).
int64_t room_for(const Memory& validation, const Memory& training);
/// Sets Memory::validation in all programs of the training.
void make_room_for(const RankClasses& validation, RankClasses& training);

}  // namespace trainctl
