//! `irdma run` from outside.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const IRDMA: &str = env!("CARGO_BIN_EXE_irdma");

fn run<S: AsRef<OsStr>>(irdma: &Path, arguments: &[S]) -> Output {
    let mut command = Command::new(irdma);
    command.arg("run").args(arguments).env_remove("LD_PRELOAD");
    // The folders with links that moved copies make go away with the target folder.
    command.env("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"));
    command.output().expect("irdma starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a program sees that `irdma run` starts, one line a mapping.
fn maps(irdma: &Path, options: &[&str]) -> String {
    let output = run(irdma, &[options, &["--", "cat", "/proc/self/maps"]].concat());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout)
}

#[test]
fn the_library_is_loaded_into_any_program() {
    assert!(maps(Path::new(IRDMA), &[]).contains("/libirdma_abi.so"));
}

#[test]
fn without_preload_only_programs_that_ask_for_it_load_it() {
    assert!(!maps(Path::new(IRDMA), &["--no-preload"]).contains("/libirdma_abi.so"));
}

#[test]
fn exit_status_and_signal_are_the_programs() {
    for (script, code, signal) in
        [("exit 0", Some(0), None), ("exit 7", Some(7), None), ("kill -9 $$", None, Some(9))]
    {
        let output = run(Path::new(IRDMA), &["--", "sh", "-c", script]);
        assert_eq!((output.status.code(), output.status.signal()), (code, signal), "{script}");
    }
}

#[test]
fn options_arrive_as_variables() {
    let script = "echo $IRDMA_LOG $IRDMA_FAULTS $IRDMA_CAPTURE; cd /; echo $0";
    let options = ["--log", "info", "--faults", "drop=1%", "--capture", "x.pcapng"];
    let output = run(Path::new(IRDMA), &[&options[..], &["sh", "-c", script, "-v"]].concat());
    let here = std::env::current_dir().expect("a test has a folder");
    let expected = format!("info drop=1% {}/x.pcapng\n-v\n", here.display());
    assert_eq!(text(&output.stdout), expected, "{output:?}");
}

#[test]
fn what_the_environment_has_comes_after() {
    let mut command = Command::new(IRDMA);
    command.env("LD_LIBRARY_PATH", "/there").args(["run", "--no-preload", "--", "sh", "-c"]);
    let output = command.arg("echo $LD_LIBRARY_PATH").output().expect("irdma starts");
    assert!(text(&output.stdout).ends_with(":/there\n"), "{output:?}");
}

#[test]
fn failures_tell_cause_and_remedy() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("not-executable");
    fs::write(&file, "").expect("the folder is writable");
    let file = file.to_str().expect("a temporary path is UTF-8");
    for (program, code, message) in [
        ("no-such-program", 127, "no-such-program: no such program in PATH"),
        ("./no-such-program", 127, "./no-such-program: no such program at this path"),
        (file, 126, "cannot be started: Permission denied"),
    ] {
        let output = run(Path::new(IRDMA), &["--", program]);
        assert_eq!(output.status.code(), Some(code), "{program}");
        assert!(text(&output.stderr).contains(message), "{output:?}");
    }
    let output = run(Path::new(IRDMA), &["--log", "loud", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(
        text(&output.stderr),
        "irdma run: --log loud: use off, error, warn, info, debug or trace\n"
    );
    let output = run(Path::new(IRDMA), &["--capture", "/no/such/folder/x", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    let message = "irdma run: capture /no/such/folder/x: No such file or directory";
    assert!(text(&output.stderr).starts_with(message), "{output:?}");
    let output = Command::new(IRDMA).args(["run", "true"]).env("IRDMA_LOG", "loud").output();
    let message = text(&output.expect("irdma starts").stderr);
    assert!(message.starts_with("irdma run: IRDMA_LOG=\"loud\": use"), "{message}");
}

#[test]
fn a_mistyped_option_is_no_program() {
    let output = run(Path::new(IRDMA), &["--logs", "info", "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("a similar argument exists: '--log'"), "{output:?}");
    let output = run(Path::new(IRDMA), &["--", "--log", "info", "true"]);
    assert_eq!(output.status.code(), Some(127));
    let message = "irdma run: --log: no such program; options of irdma run go before `--`\n";
    assert_eq!(text(&output.stderr), message);
}

#[test]
fn an_interface_that_there_is_not_is_named() {
    let output = run(Path::new(IRDMA), &["--devices", "no-such,roce_lo", "--", "true"]);
    assert!(output.status.success(), "it may come later: {output:?}");
    let message = "irdma run: warning: --devices no-such: no such interface; there are ";
    assert!(text(&output.stderr).starts_with(message), "{output:?}");
    let names = text(&output.stderr);
    assert!(names.contains("lo") && names.lines().count() == 1, "{names}");
    let output = run(Path::new(IRDMA), &["--devices", "roce_lo", "--", "true"]);
    assert_eq!(text(&output.stderr), "");
}

/// Every knob of the device is an option, and its help says what it does.
#[test]
fn help_lists_every_knob() {
    let help = text(&run(Path::new(IRDMA), &["--help"]).stdout);
    for knob in irdma::KNOBS {
        let option = format!("--{} <{}>", knob.flag, knob.value);
        assert!(help.contains(&option) && help.contains(knob.help), "{option} in {help}");
    }
}

/// Puts the program and the library into a new folder, by their paths in it. As links: a copy
/// that is being written in one thread cannot be started in another.
fn install(name: &str, program: &str, library: Option<&str>) -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::Builder::new().prefix(name).tempdir_in(env!("CARGO_TARGET_TMPDIR"));
    let root = root.expect("a temporary folder");
    let place = |from: &Path, to: &str| {
        let to = root.path().join(to);
        fs::create_dir_all(to.parent().expect("a file has a folder")).expect("writable");
        fs::hard_link(from, &to).expect("the same file system");
        to
    };
    let program = place(Path::new(IRDMA), program);
    if let Some(library) = library {
        place(&Path::new(IRDMA).with_file_name("deps/libirdma_abi.so"), library);
    }
    (root, program)
}

#[test]
fn it_finds_its_library_where_it_was_installed_or_moved() {
    for (name, program, library) in [
        ("prefix", "bin/irdma", "lib/irdma/libirdma_abi.so"),
        ("lib", "bin/irdma", "lib/libirdma_abi.so"),
        ("together", "irdma", "libirdma_abi.so"),
        ("with a space", "irdma", "libirdma_abi.so"),
    ] {
        let (root, irdma) = install(name, program, Some(library));
        let maps = maps(&irdma, &[]);
        assert!(
            maps.contains(root.path().join(library).to_str().expect("UTF-8")),
            "{name}: {maps}"
        );
    }
}

#[test]
fn it_uses_the_names_beside_an_installed_library() {
    let (root, irdma) = install("packaged", "bin/irdma", Some("lib/irdma/libirdma_abi.so"));
    let lib = root.path().join("lib/irdma");
    for name in ["libibverbs.so.1", "libibverbs.so", "librdmacm.so.1", "librdmacm.so"] {
        symlink("libirdma_abi.so", lib.join(name)).expect("the folder is writable");
    }
    let output = run(&irdma, &["--", "sh", "-c", "echo $LD_PRELOAD"]);
    assert_eq!(text(&output.stdout), format!("{}/libibverbs.so.1\n", lib.display()));
}

#[test]
fn a_missing_library_is_explained() {
    let (_root, irdma) = install("alone", "bin/irdma", None);
    let output = run(&irdma, &["--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("libirdma_abi.so is neither beside"), "{output:?}");
}

/// Debian's programs get the device from this library, not from the installed one.
#[test]
fn ibv_devices_asks_this_library() {
    if !Path::new("/usr/bin/ibv_devices").exists() {
        assert!(std::env::var_os("CI").is_none(), "package ibverbs-utils is missing");
        eprintln!("SKIPPED: no /usr/bin/ibv_devices (package ibverbs-utils)");
        return;
    }
    for options in [&[][..], &["--no-preload"]] {
        let mut command = Command::new(IRDMA);
        command.arg("run").args(options).args(["--", "ibv_devices"]).env("LD_DEBUG", "bindings");
        let bindings = text(&command.output().expect("irdma starts").stderr);
        let bound: Vec<&str> =
            bindings.lines().filter(|line| line.contains("symbol `ibv_get_device_list'")).collect();
        assert!(bound.len() == 1 && bound[0].contains(" to "), "{bound:?}");
        let to = bound[0].split(" to ").nth(1).expect("a binding names both sides");
        assert!(to.contains("irdma") && !to.starts_with("/lib/"), "{to}");
    }
}
