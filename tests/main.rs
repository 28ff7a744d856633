mod harness;
mod money;
mod scripts;
