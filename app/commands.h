// The subcommands of the program. Each function adds one, with its options and what it does.
#pragma once

namespace CLI {
class App;
}

namespace attnres {

void add_train_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_score_command(CLI::App& app);
void add_tokenize_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_serve_command(CLI::App& app);
void add_inspect_command(CLI::App& app);
void add_mechanisms_command(CLI::App& app);
void add_import_command(CLI::App& app);
void add_export_command(CLI::App& app);
void add_retrofit_command(CLI::App& app);
void add_report_command(CLI::App& app);
void add_compare_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_study_command(CLI::App& app);
void add_watch_command(CLI::App& app);
void add_doctor_command(CLI::App& app);
void add_verify_command(CLI::App& app);
void add_vectors_command(CLI::App& app);
void add_diagnose_command(CLI::App& app);
void add_help_command(CLI::App& app);

}  // namespace attnres
