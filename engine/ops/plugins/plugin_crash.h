// Reports a crash in the code of a plugin as an error that names the plugin.
#pragma once

namespace trainctl {

/// From now on a SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT in the code of a plugin ends the process with an error that
/// names the plugin and its function. Signals that have a handler are left alone.
void report_plugin_crashes();

}  // namespace trainctl
