// The commands. Each adds itself to the parser and sets the action if the user chooses it.
#pragma once

#include <array>
#include <functional>

namespace CLI {
class App;
}

namespace trainctl {

/// Does the command's work and returns the exit code. May throw SpecError, EnvError, InternalError.
using Action = std::function<int()>;

void add_run_command(CLI::App& app, Action& chosen);
void add_hosts_command(CLI::App& app, Action& chosen);
void add_render_command(CLI::App& app, Action& chosen);
void add_plan_command(CLI::App& app, Action& chosen);
void add_evaluate_command(CLI::App& app, Action& chosen);
void add_predict_command(CLI::App& app, Action& chosen);
void add_generate_command(CLI::App& app, Action& chosen);
void add_check_command(CLI::App& app, Action& chosen);
void add_show_command(CLI::App& app, Action& chosen);
void add_verify_command(CLI::App& app, Action& chosen);
void add_diff_command(CLI::App& app, Action& chosen);
void add_schema_command(CLI::App& app, Action& chosen);
void add_translate_command(CLI::App& app, Action& chosen);
void add_init_command(CLI::App& app, Action& chosen);
void add_logs_command(CLI::App& app, Action& chosen);
void add_metrics_command(CLI::App& app, Action& chosen);
void add_report_command(CLI::App& app, Action& chosen);
void add_sweep_command(CLI::App& app, Action& chosen);
void add_top_command(CLI::App& app, Action& chosen);
void add_ps_command(CLI::App& app, Action& chosen);
void add_stop_command(CLI::App& app, Action& chosen);
void add_attach_command(CLI::App& app, Action& chosen);
void add_completion_command(CLI::App& app, Action& chosen);
void add_bench_command(CLI::App& app, Action& chosen);
void add_calibrate_command(CLI::App& app, Action& chosen);
void add_checkpoint_command(CLI::App& app, Action& chosen);
void add_data_command(CLI::App& app, Action& chosen);
void add_data_set_commands(CLI::App& data, Action& chosen);        ///< subcommands of `trainctl data`
void add_data_convert_command(CLI::App& data, Action& chosen);     ///< a subcommand of `trainctl data`
void add_train_tokenizer_command(CLI::App& data, Action& chosen);  ///< a subcommand of `trainctl data`
void add_help_command(CLI::App& app, Action& chosen);
void add_man_command(CLI::App& app, Action& chosen);
void add_agent_command(CLI::App& app, Action& chosen);  ///< hidden: `run` starts it once per host of launch.hosts
void add_dial_command(CLI::App& app,
                      Action& chosen);  ///< hidden: `run` starts it once per host with a remote-execution listener
void add_worker_command(CLI::App& app, Action& chosen);  ///< hidden: `run` starts it once per rank

inline constexpr std::array kCommands = {
    add_run_command,    add_evaluate_command,  add_predict_command,   add_generate_command, add_plan_command,
    add_check_command,  add_verify_command,    add_diff_command,      add_show_command,     add_hosts_command,
    add_render_command, add_ps_command,        add_logs_command,      add_metrics_command,  add_report_command,
    add_sweep_command,  add_top_command,       add_attach_command,    add_stop_command,     add_checkpoint_command,
    add_init_command,   add_schema_command,    add_translate_command, add_data_command,     add_completion_command,
    add_bench_command,  add_calibrate_command, add_help_command,      add_man_command,      add_agent_command,
    add_dial_command,   add_worker_command};

}  // namespace trainctl
