//! The binary `quorate`.
fn main() -> std::process::ExitCode {
    quorate_server::cli::main()
}
