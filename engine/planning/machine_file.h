// Finds machines: those that come with the program, and those that `trainctl calibrate` has written.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/machine/machine.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// The folder of measured machines, NAME.json: $XDG_CONFIG_HOME/trainctl/machines, else that in ~/.config.
std::string machines_folder();

/// Returns the path of the file of the measured machine with this name. Throws SpecError if the name contains a '/'.
std::string machine_file(const std::string& name);
/// Replaces the file atomically. Throws EnvError.
void write_machine(const Machine& machine, const std::string& file);

/// Returns the machine of `launch.machine`: `auto` is "cpu" or "h200x8", depending on the device; a path (with a '/')
/// names a file; a name is that of a file in machines_folder(), else one of known_machines(). Throws SpecError if there
/// is none, EnvError if the file is invalid. For a list of machines, returns the first one with the memory of the
/// smallest.
std::shared_ptr<const Machine> machine_of(const LaunchSpec& launch);

/// If launch.machine is a list, returns the speed of each rank relative to the fastest machine; else an empty list.
/// Throws SpecError if the list does not fit the ranks.
std::vector<double> rank_speeds(const JobSpec& spec);

/// If launch.machine is a list, returns the speed of the ranks of each stage relative to the fastest machine; else an
/// empty list.
/// Throws SpecError if the list does not fit the ranks, or if ranks of one stage, which share its work evenly, differ.
std::vector<double> stage_speeds(const JobSpec& spec);

}  // namespace trainctl
