//! The tree of modules of a crate, and where a path in one of them leads.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Ident, Item, ItemUse, Meta, UseTree};

/// A `use` leads to a `use` that leads to ...: so far, and no circle of globs is followed for ever.
const MAX_STEPS: usize = 12;

/// A module, by its place in [`Tree::modules`]; the root is 0.
pub type Id = usize;

pub struct Module {
    /// A path names it so: `crate::engine::port`.
    pub name: String,
    pub file: PathBuf,
    pub parent: Id,
    pub items: Vec<Item>,
    children: HashMap<String, Id>,
    defines: HashSet<String>,
    uses: HashMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// A macro makes items of names that are not known here.
    has_unknown: bool,
}

pub struct Tree {
    pub modules: Vec<Module>,
}

/// The target of a path: a module, or an item that a module defines.
#[derive(Clone, Copy)]
pub enum Target {
    Module(Id),
    ItemOf(Id),
}

/// A name that a `use` brings, and its path; no name: all of them (`*`).
pub struct Import {
    pub name: Option<String>,
    pub path: Vec<String>,
}

impl Tree {
    pub fn read(root: &Path) -> Tree {
        Tree::build(&text_of(root), root)
    }

    pub fn parse(source: &str) -> Tree {
        Tree::build(source, Path::new("source"))
    }

    fn build(source: &str, root: &Path) -> Tree {
        let mut tree = Tree { modules: Vec::new() };
        let directory = root.parent().unwrap_or(Path::new(""));
        tree.add("crate", 0, root, directory, parsed(source, root));
        tree
    }

    /// Adds a module and those within it, whose files are in `directory`.
    fn add(&mut self, name: &str, parent: Id, file: &Path, directory: &Path, all: Vec<Item>) -> Id {
        let items: Vec<Item> = all.into_iter().filter(|item| !is_for_tests(item)).collect();
        let id = self.modules.len();
        self.modules.push(module(name, parent, file, &items));
        for item in &items {
            let Item::Mod(child) = item else { continue };
            let last = child.ident.to_string();
            let (name, below) = (format!("{name}::{last}"), directory.join(&last));
            let child = match &child.content {
                Some((_, items)) => self.add(&name, id, file, &below, items.clone()),
                None => {
                    let file = below.with_extension("rs");
                    let file = if file.exists() { file } else { below.join("mod.rs") };
                    self.add(&name, id, &file, &below, parsed(&text_of(&file), &file))
                }
            };
            self.modules[id].children.insert(last, child);
        }
        self.modules[id].items = items;
        id
    }

    /// The item that `path` in module `from` names; `None`: outside the crate.
    pub fn resolve(&self, from: Id, path: &[String]) -> Option<Target> {
        self.follow(from, path, MAX_STEPS)
    }

    pub fn is_below(&self, module: Id, ancestor: Id) -> bool {
        let parent = self.modules[module].parent;
        module != 0 && (parent == ancestor || self.is_below(parent, ancestor))
    }

    fn follow(&self, from: Id, path: &[String], steps: usize) -> Option<Target> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(from),
            "super" => Target::Module(self.modules[from].parent),
            name => self.lookup(from, name, steps)?,
        };
        while let (Target::Module(module), Some((name, further))) = (at, rest.split_first()) {
            at = match name.as_str() {
                "super" => Target::Module(self.modules[module].parent),
                name => self.lookup(module, name, steps)?,
            };
            rest = further;
        }
        Some(at)
    }

    /// The target of `name` within `module`.
    fn lookup(&self, module: Id, name: &str, steps: usize) -> Option<Target> {
        let steps = steps.checked_sub(1)?;
        let m = &self.modules[module];
        if let Some(child) = m.children.get(name) {
            return Some(Target::Module(*child));
        }
        if m.defines.contains(name) {
            return Some(Target::ItemOf(module));
        }
        if let Some(path) = m.uses.get(name) {
            return self.follow(module, path, steps);
        }
        let by_glob = m.globs.iter().find_map(|glob| match self.follow(module, glob, steps)? {
            Target::Module(other) if other != module => self.lookup(other, name, steps),
            _ => None,
        });
        by_glob.or(m.has_unknown.then_some(Target::ItemOf(module)))
    }
}

/// Returns a module without children; its items are in [`Module::items`] once they are there.
fn module(name: &str, parent: Id, file: &Path, items: &[Item]) -> Module {
    let mut uses = Uses(Vec::new());
    items.iter().for_each(|item| uses.visit_item(item));
    let (named, globs): (Vec<Import>, _) = uses.0.into_iter().partition(|i| i.name.is_some());
    Module {
        name: name.to_owned(),
        file: file.to_owned(),
        parent,
        items: Vec::new(),
        children: HashMap::new(),
        defines: items.iter().filter_map(|item| Some(parts(item).0?.to_string())).collect(),
        uses: named.into_iter().filter_map(|i| Some((i.name?, i.path))).collect(),
        globs: globs.into_iter().map(|i| i.path).collect(),
        has_unknown: items.iter().any(|i| matches!(i, Item::Macro(m) if m.ident.is_none())),
    }
}

/// Collects the imports of a module, those within functions too.
struct Uses(Vec<Import>);

impl<'a> Visit<'a> for Uses {
    fn visit_item_mod(&mut self, _: &'a syn::ItemMod) {}

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        self.0.extend(imports(item));
        visit::visit_item_use(self, item);
    }
}

/// The imports of `item`, except `::path`, which is outside the crate.
pub fn imports(item: &ItemUse) -> Vec<Import> {
    let mut found = Vec::new();
    if item.leading_colon.is_none() {
        flatten(&item.tree, &[], &mut found);
    }
    found
}

fn flatten(tree: &UseTree, before: &[String], found: &mut Vec<Import>) {
    let with = |ident: &Ident| {
        let is_self = ident == "self" && !before.is_empty();
        let own = (!is_self).then(|| ident.to_string());
        before.iter().cloned().chain(own).collect::<Vec<_>>()
    };
    match tree {
        UseTree::Path(p) => flatten(&p.tree, &with(&p.ident), found),
        UseTree::Group(g) => g.items.iter().for_each(|tree| flatten(tree, before, found)),
        UseTree::Glob(_) => found.push(Import { name: None, path: before.to_vec() }),
        UseTree::Name(n) => {
            let path = with(&n.ident);
            found.push(Import { name: path.last().cloned(), path });
        }
        UseTree::Rename(r) => {
            found.push(Import { name: Some(r.rename.to_string()), path: with(&r.ident) });
        }
    }
}

fn text_of(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn parsed(source: &str, file: &Path) -> Vec<Item> {
    syn::parse_file(source).unwrap_or_else(|e| panic!("{}: {e}", file.display())).items
}

/// `#[cfg(test)]`, or `#[cfg(all(test, ...))]`.
fn is_for_tests(item: &Item) -> bool {
    parts(item).1.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let Meta::List(list) = &attribute.meta else { return false };
        let condition = list.tokens.to_string();
        condition == "test" || condition.starts_with("all (test")
    })
}

/// The name that an item defines, and its attributes.
fn parts(item: &Item) -> (Option<&Ident>, &[Attribute]) {
    match item {
        Item::Const(i) => (Some(&i.ident), &i.attrs),
        Item::Enum(i) => (Some(&i.ident), &i.attrs),
        Item::Fn(i) => (Some(&i.sig.ident), &i.attrs),
        Item::Impl(i) => (None, &i.attrs),
        Item::Macro(i) => (i.ident.as_ref(), &i.attrs),
        Item::Mod(i) => (None, &i.attrs),
        Item::Static(i) => (Some(&i.ident), &i.attrs),
        Item::Struct(i) => (Some(&i.ident), &i.attrs),
        Item::Trait(i) => (Some(&i.ident), &i.attrs),
        Item::Type(i) => (Some(&i.ident), &i.attrs),
        Item::Union(i) => (Some(&i.ident), &i.attrs),
        Item::Use(i) => (None, &i.attrs),
        _ => (None, &[]),
    }
}
