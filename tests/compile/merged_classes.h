// Finds classes of ranks by comparing programs instead of reading the plan, for proofs of any programs, including
// broken ones.
#pragma once

#include <string>
#include <vector>

#include "engine/compile/rank_classes.h"
#include "engine/compile/verify/verify_programs.h"

namespace trainctl {

/// Everything in a program except the numbers that may differ within a class: equal texts are one class.
std::string text_of_class(const Program& program, const Mesh& mesh);

/// The mesh of one stage, sized by the ranks of stage 0.
Mesh mesh_of(const std::vector<Program>& programs);

/// The programs of all ranks; those with equal texts form one class.
RankClasses merged(const std::vector<Program>& programs, const Mesh& mesh);

/// Returns the faults that the proof rank by rank finds. Fails the test if there are some and the proof by classes
/// finds none.
std::vector<ProgramFault> faults_by_both_proofs(const std::vector<Program>& programs);

}  // namespace trainctl
