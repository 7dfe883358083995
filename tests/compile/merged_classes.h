// Classes found by comparing programs, not by what the plan says of ranks: for proofs of any programs, broken ones too.
#pragma once

#include <string>
#include <vector>

#include "engine/compile/rank_classes.h"
#include "engine/compile/verify_programs.h"

namespace trainctl {

/// Everything in a program but the numbers that may differ between the ranks of a class: equal texts, one class.
std::string text_of_class(const Program& program, const Mesh& mesh);

/// The ranks of one stage, as many as have stage 0.
Mesh mesh_of(const std::vector<Program>& programs);

/// Programs of all ranks, those with equal texts as one class.
RankClasses merged(const std::vector<Program>& programs, const Mesh& mesh);

/// The faults that are found rank by rank. Fails the test unless the proof by classes finds some where this does.
std::vector<ProgramFault> faults_by_both_proofs(const std::vector<Program>& programs);

}  // namespace trainctl
