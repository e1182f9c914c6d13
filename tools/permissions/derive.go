package main

import (
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/ssa"
	"golang.org/x/tools/go/ssa/ssautil"
)

// The permissions that a function needs are derived from its code, because a test that runs for seconds does not get to
// the things that a deployment does after hours. For the main package of each function, this file
//
//  1. finds the code of this module that main can reach,
//  2. finds its calls to store.DB and queue.Queue, and
//  3. follows each key back to where it is made, which gives the table and the beginning of the partition.
//
// It follows values but no conditions, so it also finds operations that the function never makes. [unreachable] lists them.

const (
	module    = "github.com/mcp-events/mcpevents"
	storePath = module + "/shared/storage/store"
	queuePath = module + "/shared/storage/queue"
)

type need struct {
	action, resource string
	prefix           string // of the partition; "" if it is not known
	at               string // the Go function that makes it
}

// exception is an operation that the code contains and a function never makes.
type exception struct{ function, resource, at, why string }

var unreachable = []exception{
	{"RegisterFunction", "SessionsTable", "shared/mcp/session", "the endpoint behind stream has no sessions"},
	{"DeregisterFunction", "SessionsTable", "shared/mcp/session", "the endpoint behind stream has no sessions"},
	{"DeregisterFunction", "LogTable", "shared/events/log", "stream forwards requests that end subscriptions, and no polls"},
	{"DeregisterFunction", "SessionsTable", "shared/events/demand", "stream forwards requests that end subscriptions, and no polls"},
	{"AdminFunction", "LogTable", "shared/events/log.exact).visitID", "DynamoDB has no index of ids"},
	{"AdminFunction", "LogTable", "shared/events/log.exact).replace", "DynamoDB has no index of ids"},
	{"KeysFunction", "SettingsTable", "shared/storage/settings.", "keys reads neither the catalog nor the configuration"},
	{"StreamFunction", "SubscriptionsTable", "shared/events/demand", "only a stand-alone server has backends that are commands, which it keeps for their events"},
	{"RelayFunction", "SettingsTable", "shared/storage/settings.Write", "relay writes only the event types of backends"},
	{"KeysFunction", "SettingsTable", "shared/storage/settings.", "keys reads no catalog and no configuration"},
}

func missing(function string, statements []statement, needs []need) (all []need) {
	for _, n := range needs {
		excepted := slices.ContainsFunc(unreachable, func(u exception) bool { return u.function == function && u.covers(n) })
		if !excepted && !n.allowed(statements) {
			all = append(all, n)
		}
	}
	return all
}

func (u exception) covers(n need) bool {
	return u.resource == n.resource && strings.Contains(n.at, u.at)
}

// allowed reports whether a statement allows an operation, on a table for some of the partitions with the prefix.
func (n need) allowed(statements []statement) bool {
	return slices.ContainsFunc(statements, func(st statement) bool {
		if !slices.Contains(st.Action, n.action) || !slices.Contains(st.Resource, n.resource) {
			return false
		}
		keys := st.Condition["ForAllValues:StringLike"]["dynamodb:LeadingKeys"]
		return len(keys) == 0 || slices.ContainsFunc(keys, func(k string) bool {
			start, _, _ := strings.Cut(k, "*")
			return strings.HasPrefix(start, n.prefix) || strings.HasPrefix(n.prefix, start)
		})
	})
}

type code struct {
	prog  *ssa.Program
	mains map[string]*ssa.Package // by the logical id of the function
}

// load type-checks the functions and their packages.
func load(dir string) (*code, error) {
	cfg := &packages.Config{Dir: dir, Mode: packages.LoadSyntax | packages.NeedModule}
	pkgs, err := packages.Load(cfg, "./functions/...", "./shared/...")
	if err != nil {
		return nil, err
	}
	for _, p := range pkgs {
		if len(p.Errors) > 0 {
			return nil, p.Errors[0]
		}
	}
	prog, built := ssautil.Packages(pkgs, ssa.InstantiateGenerics)
	prog.Build()
	c := &code{prog: prog, mains: map[string]*ssa.Package{}}
	for i, p := range pkgs {
		if p.Name == "main" {
			name := strings.TrimPrefix(p.PkgPath, module+"/functions/")
			c.mains[resourceOf(name, "Function")] = built[i]
		}
	}
	return c, nil
}

// resourceOf returns the logical id of a resource, such as LogTable for the name log.
func resourceOf(name, kind string) string { return strings.ToUpper(name[:1]) + name[1:] + kind }

// needs has the logical ids of functions as keys.
func (c *code) needs() map[string][]need {
	all := map[string][]need{}
	for id := range c.mains {
		all[id] = c.role(id).needs()
	}
	return all
}

// role is the part of the code that one function's main can reach.
type role struct {
	prog    *ssa.Program
	reached map[*ssa.Function]bool
	todo    []*ssa.Function
	types   map[types.Type]bool // converted to an interface
	invoked map[string]bool     // names of methods that are called through an interface

	sites  map[*ssa.Function][]*ssa.CallCommon // static and, for methods, through an interface
	stores map[*types.Var][]ssa.Value          // by field of a struct that is not the store's
	global map[*ssa.Global][]ssa.Instruction
	values map[*ssa.Function][]*ssa.MakeClosure
	passed map[*ssa.Function][]*ssa.CallCommon // calls that have the function, or a closure of it, as an argument
}

func (c *code) role(name string) *role {
	r := &role{
		prog: c.prog, reached: map[*ssa.Function]bool{}, types: map[types.Type]bool{}, invoked: map[string]bool{},
		sites: map[*ssa.Function][]*ssa.CallCommon{}, stores: map[*types.Var][]ssa.Value{}, global: map[*ssa.Global][]ssa.Instruction{},
		values: map[*ssa.Function][]*ssa.MakeClosure{}, passed: map[*ssa.Function][]*ssa.CallCommon{},
	}
	r.reach(c.mains[name].Func("main"))
	linked := map[*types.Package]bool{}
	var link func(*types.Package)
	link = func(p *types.Package) {
		if linked[p] || !ours(p) {
			return
		}
		linked[p] = true
		r.reach(c.prog.Package(p).Func("init"))
		for _, imported := range p.Imports() {
			link(imported)
		}
	}
	link(c.mains[name].Pkg)
	for len(r.todo) > 0 {
		f := r.todo[len(r.todo)-1]
		r.todo = r.todo[:len(r.todo)-1]
		r.scan(f)
	}
	r.index()
	return r
}

func (r *role) reach(f *ssa.Function) {
	if f == nil || r.reached[f] || len(f.Blocks) == 0 {
		return
	}
	r.reached[f] = true
	r.todo = append(r.todo, f)
}

func instructions(f *ssa.Function) (all []ssa.Instruction) {
	for _, b := range f.Blocks {
		all = append(all, b.Instrs...)
	}
	return all
}

func (r *role) scan(f *ssa.Function) {
	var operands []*ssa.Value
	for _, in := range instructions(f) {
		for _, v := range in.Operands(operands[:0]) {
			if fn, ok := (*v).(*ssa.Function); ok {
				r.reach(fn)
			}
		}
		switch in := in.(type) {
		case *ssa.MakeInterface:
			if !r.types[in.X.Type()] {
				r.types[in.X.Type()] = true
				for name := range r.invoked {
					r.method(in.X.Type(), name)
				}
			}
			// Code outside of the module may call the methods of its own interfaces.
			if named, ok := types.Unalias(in.Type()).(*types.Named); ok && !ours(named.Obj().Pkg()) {
				r.methods(in.X.Type(), named.Underlying().(*types.Interface))
			}
		case ssa.CallInstruction:
			if c := in.Common(); c.IsInvoke() && !r.invoked[c.Method.Name()] {
				r.invoked[c.Method.Name()] = true
				for t := range r.types {
					r.method(t, c.Method.Name())
				}
			}
		}
	}
}

func ours(p *types.Package) bool { return p != nil && strings.HasPrefix(p.Path(), module) }

func (r *role) methods(t types.Type, i *types.Interface) {
	for m := range i.Methods() {
		r.method(t, m.Name())
	}
}

func (r *role) method(t types.Type, name string) {
	set := r.prog.MethodSets.MethodSet(t)
	for sel := range set.Methods() {
		if sel.Obj().Name() == name {
			r.reach(r.prog.MethodValue(sel))
		}
	}
}

func (r *role) index() {
	for f := range r.reached {
		for _, in := range instructions(f) {
			var operands []*ssa.Value
			for _, v := range in.Operands(operands) {
				if g, ok := (*v).(*ssa.Global); ok {
					r.global[g] = append(r.global[g], in)
				}
			}
			switch in := in.(type) {
			case *ssa.MakeClosure:
				fn := in.Fn.(*ssa.Function)
				r.values[fn] = append(r.values[fn], in)
			case *ssa.Store:
				if fa, ok := in.Addr.(*ssa.FieldAddr); ok {
					r.stores[fieldOf(fa)] = append(r.stores[fieldOf(fa)], in.Val)
				}
			case ssa.CallInstruction:
				c := in.Common()
				for _, callee := range r.callees(c) {
					r.sites[callee] = append(r.sites[callee], c)
				}
				for _, a := range c.Args {
					if fn := function(a); fn != nil {
						r.passed[fn] = append(r.passed[fn], c)
					}
				}
			}
		}
	}
}

func function(v ssa.Value) *ssa.Function {
	switch v := v.(type) {
	case *ssa.Function:
		return v
	case *ssa.MakeClosure:
		return v.Fn.(*ssa.Function)
	case *ssa.ChangeType:
		return function(v.X)
	}
	return nil
}

// callees returns the reached functions of this module that a call may call.
func (r *role) callees(c *ssa.CallCommon) (all []*ssa.Function) {
	if !c.IsInvoke() {
		if f := c.StaticCallee(); f != nil && r.reached[f] {
			all = append(all, f)
		}
		return all
	}
	i, ok := c.Value.Type().Underlying().(*types.Interface)
	if !ok {
		return nil
	}
	for t := range r.types {
		if !types.Implements(t, i) {
			continue
		}
		set := r.prog.MethodSets.MethodSet(t)
		if sel := set.Lookup(c.Method.Pkg(), c.Method.Name()); sel != nil {
			if f := r.prog.MethodValue(sel); f != nil && r.reached[f] {
				all = append(all, f)
			}
		}
	}
	return all
}

func fieldOf(fa *ssa.FieldAddr) *types.Var {
	return fa.X.Type().Underlying().(*types.Pointer).Elem().Underlying().(*types.Struct).Field(fa.Field)
}

func (r *role) needs() (all []need) {
	seen := map[need]bool{}
	for f := range r.reached {
		if p := f.Package(); p == nil || strings.HasPrefix(p.Pkg.Path(), storePath) {
			continue // its helpers and adapters act for their callers
		}
		for _, in := range instructions(f) {
			call, ok := in.(ssa.CallInstruction)
			if !ok {
				continue
			}
			for _, n := range r.operations(call.Common()) {
				n.at = strings.ReplaceAll(f.RelString(nil), module+"/", "")
				if !seen[n] {
					seen[n] = true
					all = append(all, n)
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b need) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return all
}

func isStore(t types.Type, name string) bool { return isNamed(t, storePath, name) }

func isNamed(t types.Type, path, name string) bool {
	named, ok := types.Unalias(t).(*types.Named)
	return ok && named.Obj().Name() == name && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == path
}

// keysIn returns the number of arguments of a variadic call, or 0 if a slice is passed.
func keysIn(arg ssa.Value) int64 {
	if s, ok := arg.(*ssa.Slice); ok {
		if a, ok := s.X.(*ssa.Alloc); ok {
			if array, ok := a.Type().Underlying().(*types.Pointer).Elem().Underlying().(*types.Array); ok {
				return array.Len()
			}
		}
	}
	return 0
}

// operation returns the name of the called function of package store, or of the called method of its DB or of a queue, or "".
func operation(c *ssa.CallCommon) string {
	if c.IsInvoke() {
		params := c.Signature().Params()
		if isStore(c.Value.Type(), "DB") || params.Len() > 1 && isNamed(params.At(1).Type(), queuePath, "Name") {
			return c.Method.Name()
		}
	} else if f := c.StaticCallee(); f != nil && f.Package() != nil && f.Package().Pkg.Path() == storePath {
		return f.Name()
	}
	return ""
}

// ofOps are the actions of the operations in a [store.DB.Write]. Counts are updated, and put where they have expired.
var ofOps = map[string][]string{
	"Put": {"PutItem"}, "Delete": {"DeleteItem"}, "Add": {"UpdateItem", "PutItem"}, "Raise": {"UpdateItem", "PutItem"}, "Check": {"ConditionCheckItem"},
}

func (r *role) operations(c *ssa.CallCommon) (all []need) {
	add := func(v ssa.Value, path []string, actions ...string) {
		for _, k := range r.keys(v, path) {
			for _, a := range actions {
				all = append(all, need{action: "dynamodb:" + a, resource: resourceOf(k.table, "Table"), prefix: k.prefix})
			}
		}
	}
	switch name := operation(c); name {
	case "Send":
		t := r.trace()
		t.text = true
		t.follow(c.Args[1], nil)
		for _, queue := range t.texts {
			all = append(all, need{action: "sqs:SendMessage", resource: resourceOf(queue, "Queue")})
		}
	case "Get":
		switch keysIn(c.Args[1]) {
		case 1:
			add(c.Args[1], nil, "GetItem")
		default:
			add(c.Args[1], nil, "GetItem", "BatchGetItem")
		}
	case "Query":
		add(c.Args[1], nil, "Query")
	case "One":
		add(c.Args[2], nil, "GetItem")
	case "Each", "EachOf":
		add(c.Args[2], nil, "Query")
	case "Write", "WriteAll":
		t := r.trace()
		t.stop = func(v ssa.Value, path []string) bool {
			call, ok := v.(*ssa.Call)
			return ok && len(path) == 0 && madeBy(call) != ""
		}
		t.follow(c.Args[1], nil)
		for _, leaf := range t.leaves {
			call := leaf.value.(*ssa.Call)
			actions := ofOps[madeBy(call)]
			if name == "WriteAll" {
				actions = []string{"BatchWriteItem"}
			}
			path := []string{}
			if madeBy(call) == "Put" {
				path = []string{"Key"}
			}
			add(call.Call.Args[0], path, actions...)
		}
	}
	return all
}

// madeBy returns the function of package store that makes an operation, or "".
func madeBy(c *ssa.Call) string {
	if name := operation(&c.Call); ofOps[name] != nil {
		return name
	}
	return ""
}

type keyOf struct{ table, prefix string }

// keys returns the tables and the beginnings of partitions of the keys in v, below the path of fields.
func (r *role) keys(v ssa.Value, path []string) (all []keyOf) {
	t := r.trace()
	t.stop = func(v ssa.Value, path []string) bool {
		return len(path) == 0 && pointsToKey(v) && written(v, "Table")
	}
	t.follow(v, path)
	for _, leaf := range t.leaves {
		for _, table := range r.texts(leaf.value, "Table") {
			for _, prefix := range r.texts(leaf.value, "Partition") {
				if k := (keyOf{table, prefix}); !slices.Contains(all, k) {
					all = append(all, k)
				}
			}
		}
	}
	return all
}

func pointsToKey(v ssa.Value) bool {
	p, ok := v.Type().Underlying().(*types.Pointer)
	return ok && (isStore(p.Elem(), "Key") || isStore(p.Elem(), "Query"))
}

func written(addr ssa.Value, field string) bool {
	refs := addr.Referrers()
	if refs == nil {
		return false
	}
	for _, in := range *refs {
		fa, ok := in.(*ssa.FieldAddr)
		if !ok || fieldOf(fa).Name() != field {
			continue
		}
		for _, use := range *fa.Referrers() {
			if st, ok := use.(*ssa.Store); ok && st.Addr == fa {
				return true
			}
		}
	}
	return false
}

// texts returns the values of a text field, or their known beginnings.
func (r *role) texts(v ssa.Value, field string) []string {
	t := r.trace()
	t.text = true
	t.follow(v, []string{field})
	if len(t.texts) == 0 {
		return []string{""}
	}
	return t.texts
}

type trace struct {
	role   *role
	stop   func(v ssa.Value, path []string) bool
	leaves []leaf
	text   bool
	texts  []string
	seen   map[place]bool
}

type place struct {
	value ssa.Value
	path  string
}

type leaf struct {
	value ssa.Value
	path  []string
}

func (r *role) trace() *trace { return &trace{role: r, seen: map[place]bool{}} }

func (t *trace) found(text string) {
	if !slices.Contains(t.texts, text) {
		t.texts = append(t.texts, text)
	}
}

// follow goes from a value to the values from which it is made; path names the fields that are of interest. An address stands
// for what is there, and a slice or a map for what is in it.
func (t *trace) follow(v ssa.Value, path []string) {
	if v == nil || len(path) > 6 {
		return
	}
	at := place{v, strings.Join(path, ".")}
	if t.seen[at] {
		return
	}
	t.seen[at] = true
	if t.stop != nil && t.stop(v, path) {
		t.leaves = append(t.leaves, leaf{v, path})
		return
	}
	switch v := v.(type) {
	case *ssa.Const:
		if t.text && len(path) == 0 && v.Value != nil && v.Value.Kind() == constant.String {
			t.found(constant.StringVal(v.Value))
		}
	case *ssa.Call:
		t.result(v, 0, path)
	case *ssa.Extract:
		switch tuple := v.Tuple.(type) {
		case *ssa.Call:
			t.result(tuple, v.Index, path)
		case *ssa.Next:
			t.follow(tuple.Iter.(*ssa.Range).X, path)
		case *ssa.TypeAssert, *ssa.Lookup, *ssa.UnOp:
			t.follow(operand(tuple), path)
		}
	case *ssa.Parameter:
		t.parameter(v, path)
	case *ssa.FreeVar:
		for _, made := range t.role.values[v.Parent()] {
			for i, free := range v.Parent().FreeVars {
				if free == v {
					t.follow(made.Bindings[i], path)
				}
			}
		}
	case *ssa.Phi:
		for _, e := range v.Edges {
			t.follow(e, path)
		}
	case *ssa.BinOp:
		if v.Op == token.ADD {
			t.follow(v.X, path)
		}
	case *ssa.Field:
		name := v.X.Type().Underlying().(*types.Struct).Field(v.Field).Name()
		t.follow(v.X, append([]string{name}, path...))
	case *ssa.FieldAddr:
		field := fieldOf(v)
		t.into(v, path)
		t.follow(v.X, append([]string{field.Name()}, path...))
		if _, local := v.X.(*ssa.Alloc); !local && field.Pkg() != nil && field.Pkg().Path() != storePath {
			for _, val := range t.role.stores[field] {
				t.follow(val, path)
			}
		}
	case *ssa.Alloc, *ssa.MakeSlice, *ssa.MakeMap, *ssa.Global:
		t.into(v, path)
	case *ssa.IndexAddr, *ssa.Index, *ssa.Lookup, *ssa.Slice, *ssa.UnOp, *ssa.ChangeType, *ssa.Convert, *ssa.MakeInterface,
		*ssa.ChangeInterface, *ssa.TypeAssert:
		t.follow(operand(v), path)
	}
}

func operand(v ssa.Value) ssa.Value { return *v.(ssa.Instruction).Operands(nil)[0] }

// into follows the values that are written to an address, a slice or a map.
func (t *trace) into(addr ssa.Value, path []string) {
	var users []ssa.Instruction
	if g, ok := addr.(*ssa.Global); ok {
		users = t.role.global[g]
	} else if refs := addr.Referrers(); refs != nil {
		users = *refs
	}
	for _, in := range users {
		switch in := in.(type) {
		case *ssa.Store:
			if in.Addr == addr {
				t.follow(in.Val, path)
			}
		case *ssa.MapUpdate:
			if in.Map == addr {
				t.follow(in.Key, path)
				t.follow(in.Value, path)
			}
		case *ssa.FieldAddr:
			if len(path) > 0 && in.X == addr && fieldOf(in).Name() == path[0] {
				if t.stop != nil && t.stop(in, path[1:]) {
					t.leaves = append(t.leaves, leaf{in, path[1:]})
				} else {
					t.into(in, path[1:])
				}
			}
		case *ssa.IndexAddr:
			if in.X == addr {
				if t.stop != nil && t.stop(in, path) {
					t.leaves = append(t.leaves, leaf{in, path})
				} else {
					t.into(in, path)
				}
			}
		case *ssa.Slice:
			t.into(in, path)
		case *ssa.MakeClosure:
			fn := in.Fn.(*ssa.Function)
			for i, b := range in.Bindings {
				if b == addr && t.role.reached[fn] {
					t.into(fn.FreeVars[i], path)
				}
			}
		}
	}
}

func (t *trace) parameter(p *ssa.Parameter, path []string) {
	f := p.Parent()
	index := slices.Index(f.Params, p)
	for _, c := range t.role.sites[f] {
		args := c.Args
		if c.IsInvoke() {
			args = append([]ssa.Value{c.Value}, args...)
		}
		if index < len(args) {
			t.follow(args[index], path)
		}
	}
	for _, c := range t.role.passed[f] {
		t.visit(c, f, index, path)
	}
}

// visit follows a parameter of a function that was passed to another one, which calls it.
func (t *trace) visit(c *ssa.CallCommon, f *ssa.Function, index int, path []string) {
	callee := c.StaticCallee()
	if callee == nil {
		return
	}
	if name := operation(c); name == "Each" || name == "EachOf" {
		if len(path) > 0 && path[0] == "Key" {
			t.follow(c.Args[2], path[1:])
		}
		return
	}
	for i, a := range c.Args {
		if function(a) != f || i >= len(callee.Params) {
			continue
		}
		for _, in := range instructions(callee) {
			if call, ok := in.(ssa.CallInstruction); ok && !call.Common().IsInvoke() && call.Common().Value == callee.Params[i] && index < len(call.Common().Args) {
				t.follow(call.Common().Args[index], path)
			}
		}
	}
}

func (t *trace) result(call *ssa.Call, index int, path []string) {
	c := &call.Call
	if b, ok := c.Value.(*ssa.Builtin); ok {
		if b.Name() == "append" {
			for _, a := range c.Args {
				t.follow(a, path)
			}
		}
		return
	}
	switch name := operation(c); {
	case name == "Get" && len(path) > 0 && path[0] == "Key":
		t.follow(c.Args[1], path[1:])
		return
	case name == "One" && len(path) > 0 && path[0] == "Key":
		t.follow(c.Args[2], path[1:])
		return
	case name == "Query" && len(path) > 1 && path[0] == "Items" && path[1] == "Key":
		t.follow(c.Args[1], path[2:])
		return
	case c.IsInvoke() && name != "":
		return
	}
	if made := madeBy(call); made != "" { // seen from here, and not as what the function returns to everyone
		switch {
		case len(path) < 2 || path[0] != "Item":
		case made == "Put":
			t.follow(c.Args[0], path[1:])
		case path[1] == "Key":
			t.follow(c.Args[0], path[2:])
		}
		return
	}
	callees := t.role.callees(c)
	for _, f := range callees {
		for _, in := range instructions(f) {
			if ret, ok := in.(*ssa.Return); ok && index < len(ret.Results) {
				t.follow(ret.Results[index], path)
			}
		}
	}
	if len(callees) > 0 || c.IsInvoke() {
		return
	}
	f := c.StaticCallee()
	switch {
	case f == nil || len(c.Args) == 0:
	case t.text && f.String() == "fmt.Sprintf":
		if format, ok := c.Args[0].(*ssa.Const); ok {
			text, _, _ := strings.Cut(constant.StringVal(format.Value), "%")
			t.found(text)
		}
	default: // such as slices.Concat and strings.Clone
		for _, a := range c.Args {
			t.follow(a, path)
		}
	}
}
